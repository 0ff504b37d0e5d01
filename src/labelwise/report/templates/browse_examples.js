"use strict";
// Filters and searches the examples of a report. Without it, all examples are on the page, most of them folded.
(() => {
  const browser = document.getElementById("example-browser");
  const list = document.getElementById("example-list");
  const folded = document.getElementById("more-examples");
  if (!browser || !list || !folded) return;
  const cards = Array.from(document.querySelectorAll("#examples .example"));
  const texts = cards.map((card) => card.textContent.toLowerCase());
  const search = browser.querySelector("input");
  const filter = browser.querySelector("select");
  const status = browser.querySelector("output");
  const more = document.getElementById("show-more");
  const step = 6;
  let limit = step;
  for (const card of cards) list.append(card);
  folded.remove();
  browser.hidden = false;
  function update() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    cards.forEach((card, index) => {
      const fits = (!filter.value || card.dataset.kinds.split(" ").includes(filter.value))
        && words.every((word) => texts[index].includes(word));
      found += fits ? 1 : 0;
      card.hidden = !fits || found > limit;
    });
    status.textContent = found === 1 ? "1 document" : `${found} documents`;
    more.hidden = found <= limit;
  }
  function restart() {
    limit = step;
    update();
  }
  search.addEventListener("input", restart);
  filter.addEventListener("change", restart);
  more.addEventListener("click", () => {
    limit += step;
    update();
  });
  update();
})();
