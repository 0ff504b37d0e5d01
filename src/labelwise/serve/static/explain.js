// Why a label: words marked in the text, their contributions, the path in each tree; of images, a map.
import { bar, byId, element, shortNumber } from "./dom.js";

export const titleOf = (one) => (one.text && one.text !== one.label ? one.text : one.label);

// Positions count Unicode characters, where JavaScript's strings count UTF-16 units.
export function markText(target, text, spans) {
  const characters = Array.from(text);
  const strength = new Array(characters.length).fill(0);
  for (const [begin, end, contribution] of spans) {
    for (let index = begin; index < end; index++) {
      if (Math.abs(contribution) > Math.abs(strength[index])) strength[index] = contribution;
    }
  }
  const largest = Math.max(...spans.map(([, , contribution]) => Math.abs(contribution)), 0);
  const pieces = [];
  for (let begin = 0; begin < characters.length; ) {
    let end = begin + 1;
    while (end < characters.length && strength[end] === strength[begin]) end++;
    const piece = characters.slice(begin, end).join("");
    const part = Math.abs(strength[begin]) / largest;
    if (!(part >= 0.03)) pieces.push(piece); // words that hardly count would hide those that do
    else {
      const against = strength[begin] < 0;
      const about = `${against ? "against" : "for"} the label: ${strength[begin].toFixed(3)}`;
      pieces.push(element("mark", { class: `${against ? "against" : "for"}${part < 0.25 ? " weak" : ""}`, title: about }, piece));
    }
    begin = end;
  }
  target.replaceChildren(...pieces);
}

function termTable(explanation) {
  const rows = explanation.terms.map((term) => [term.name, term.contribution]);
  if (explanation.other) rows.push(["other words", explanation.other]);
  rows.push(["bias", explanation.bias]);
  const largest = Math.max(...rows.map(([, amount]) => Math.abs(amount))) || 1;
  const cells = rows.flatMap(([name, amount]) => [
    element("span", { class: "term" }, name),
    bar(Math.abs(amount) / largest, amount < 0),
    element("span", { class: "number" }, (amount > 0 ? "+" : "") + amount.toFixed(3)),
  ]);
  return element("div", { class: "terms" }, ...cells);
}

function pathList(path, number, count) {
  const steps = path.steps.map((step, depth) => {
    const last = depth === path.steps.length - 1;
    const what = last ? "the label" : `${step.n_labels.toLocaleString("en")} labels, such as ${step.examples.join(", ")}`;
    const outside = step.kept ? "" : " - outside the beam";
    return element("li", { class: step.kept ? "" : "outside-beam" }, `score ${step.score.toFixed(3)}: ${what}${outside}`);
  });
  const heading = count > 1 ? `Path in tree ${number}` : "Path in the tree";
  return [element("h2", {}, heading), element("ol", { class: "path" }, ...steps)];
}

function parts(explanation) {
  if (explanation.members) {
    return explanation.members.flatMap((part) => [
      element("h2", {}, `${part.member}: ${part.rank ? `rank ${part.rank}` : "not ranked"}, weight ${shortNumber(part.weight)}`),
      ...(part.explanation?.terms ? [termTable(part.explanation)] : []),
    ]);
  }
  const paths = explanation.paths ?? [];
  const trees = paths.flatMap((path, index) => pathList(path, index + 1, paths.length));
  return [...(explanation.terms ? [termTable(explanation)] : []), ...trees];
}

function drawMap(canvas, picture, falls) {
  canvas.width = picture.naturalWidth;
  canvas.height = picture.naturalHeight;
  const context = canvas.getContext("2d");
  context.filter = "grayscale(1)";
  context.drawImage(picture, 0, 0);
  context.filter = "none";
  const largest = Math.max(...falls.flat(), 0) || 1;
  const height = canvas.height / falls.length;
  falls.forEach((row, y) => row.forEach((fall, x) => {
    context.fillStyle = `rgba(220, 0, 0, ${0.65 * Math.max(0, fall) / largest})`;
    context.fillRect(x * canvas.width / row.length, y * height, canvas.width / row.length, height);
  }));
}

export function showExplanation(explanation, scores, document, picture) {
  const unreached = explanation.predicted ? "" : " (not reached by the search)";
  byId("explained").textContent = `${titleOf(explanation)}: ${scores} ${shortNumber(explanation.score)}${unreached}`;
  const marked = byId("marked"), map = byId("map");
  marked.hidden = document === null;
  map.hidden = document !== null;
  if (document !== null) markText(marked, document, explanation.spans ?? []);
  else if (picture && explanation.falls) {
    map.setAttribute("role", "img");
    map.setAttribute("aria-label", "The image; the redder a part, the more the score depends on it");
    drawMap(map, picture, explanation.falls);
  }
  for (const kind of ["for", "against"]) {
    byId("legend").querySelector(`.${kind}`).hidden = document === null || !marked.querySelector(`.${kind}`);
  }
  byId("legend").hidden = !byId("legend").querySelector("mark:not([hidden])");
  byId("why").replaceChildren(...parts(explanation));
  byId("explanation").hidden = false;
}
