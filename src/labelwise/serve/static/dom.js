// Elements are built from text only: names of labels and texts never become markup.
export const byId = (id) => document.getElementById(id);

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function bar(fraction, against = false) {
  const made = element("span", { class: against ? "bar against" : "bar" });
  made.style.width = `${Math.max(0, Math.min(1, fraction)) * 100}%`;
  return element("span", { class: "track" }, made);
}

export const shortNumber = (value) => (Math.abs(value) >= 1000 ? value.toFixed(0) : value.toPrecision(3));

export function followTheme(button) {
  const root = document.documentElement;
  const kept = localStorage.getItem("theme");
  if (kept) root.dataset.theme = kept;
  button?.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("theme", root.dataset.theme);
  });
}
