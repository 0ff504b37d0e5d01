// The page: choose a model, give a document, see labels and why.
import { curlCommand, hasKey, keepKey, modelPath, patiently, send, sendImage, sendJson } from "./api.js";
import { bar, byId, element, followTheme, shortNumber } from "./dom.js";
import { showExplanation, titleOf } from "./explain.js";
import { readText } from "./files.js";
import { offerColumns, runTable, stopTable, takeTable } from "./table_run.js";

const state = { models: [], limits: {}, model: null, image: null, picture: null, shown: null, turn: 0 };

function showError(error) {
  const place = byId("error");
  place.textContent = error ? (error.message ?? String(error)) : "";
  place.hidden = !error;
  if (error?.status === 401) {
    byId("key-form").hidden = false;
    byId("key").focus();
    if (!hasKey()) place.hidden = true;
  }
}

async function attempt(work) {
  try {
    showError(null);
    return await work();
  } catch (error) {
    showError(error);
    return undefined;
  }
}

// --- models ---

async function loadModels() {
  const found = await patiently(async () => {
    await send("ready").catch((refusal) => {
      if (refusal.status === 503) byId("status").textContent = "The models are being loaded.";
      throw refusal;
    });
    return send("v1/models");
  }, { tries: 600 });
  byId("status").textContent = "";
  state.models = found.models;
  state.limits = found.limits;
  byId("key-form").hidden = true;
  byId("k").max = state.limits.k;
  byId("model").replaceChildren(...state.models.map((one) => element("option", { value: one.name }, one.name)));
  await chooseModel(state.models[0]?.name);
}

async function chooseModel(name) {
  state.model = state.models.find((one) => one.name === name) ?? null;
  if (!state.model) return;
  const image = state.model.reads === "image";
  byId("text-input").hidden = image;
  byId("image-input").hidden = !image;
  byId("table").hidden = image;
  byId("file").accept = image ? "image/*" : "text/*,.txt,.csv";
  byId("auto").hidden = state.model.threshold === null;
  if (byId("threshold").value === "auto" && state.model.threshold === null) byId("threshold").value = "";
  clearLabels();
  byId("query").value = "";
  byId("found").replaceChildren();
  await offerColumns(state.model);
  if (byId("search").open) await searchLabels();
  if (byId("card").open) await showCard();
}

async function showCard() {
  const about = await send(modelPath(state.model.name));
  const rows = [
    ["method", about.method], ["labels", about.labels.toLocaleString("en")],
    ["trained on", `${about.card.data?.name ?? "data"}, ${(about.documents ?? 0).toLocaleString("en")} documents`],
    ["created", about.created ?? "not known"],
    ["scores", about.calibrated ? "probabilities" : "not calibrated: an order, no probabilities"],
  ];
  if (about.threshold !== null) rows.push(["calibrated threshold", shortNumber(about.threshold)]);
  for (const [name, value] of Object.entries(about.expected ?? {})) rows.push([`expected ${name}`, `${(100 * value).toFixed(1)} %`]);
  for (const [name, value] of Object.entries(about.metrics?.values ?? {})) {
    if (value !== null) rows.push([name, `${(100 * value).toFixed(2)} %`]);
  }
  byId("about").replaceChildren(...rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, String(value))]));
}

// --- one document ---

function options() {
  const asked = {};
  const k = byId("k").value.trim(), threshold = byId("threshold").value.trim();
  if (k !== "") {
    if (!/^\d+$/.test(k) || Number(k) < 1) throw new Error(`Labels: a whole number from 1 is needed, not '${k}'`);
    asked.k = Number(k);
  }
  if (threshold === "auto") asked.threshold = "auto";
  else if (threshold !== "") {
    const number = Number(threshold.replace(",", "."));
    if (Number.isNaN(number)) throw new Error(`Threshold: a number or auto is needed, not '${threshold}'`);
    asked.threshold = number;
  }
  return asked;
}

function clearLabels() {
  state.turn++;
  state.shown = null;
  byId("labels").replaceChildren();
  byId("explanation").hidden = true;
  const image = state.model?.reads === "image", words = !image && state.model?.explains;
  byId("hint").textContent = `Labels of the ${image ? "image" : "text"} appear here${words ? ", with the words that caused them" : ""}.`;
  byId("hint").hidden = false;
}

async function predict() {
  const model = state.model;
  if (!model) throw new Error("there is no model yet");
  const asked = options();
  const image = model.reads === "image";
  const text = byId("document").value;
  if (image && !state.image) throw new Error("Choose an image first, or drop one");
  if (!image && text.trim() === "") {
    byId("document").focus();
    throw new Error("Paste a text first, or drop a file");
  }
  clearLabels();
  const turn = state.turn;
  byId("status").textContent = "Computing …";
  byId("predict").disabled = true;
  try {
    const path = modelPath(model.name, "/predict");
    const words = !image && model.explains ? { explain: 3 } : {};
    const answer = image ? await sendImage(path, state.image, asked) : await sendJson(path, { text, ...asked, ...words });
    if (turn !== state.turn) return;
    state.shown = { model, text: image ? null : text, image: state.image, scores: answer.scores, threshold: asked.threshold };
    await showLabels(answer.results[0].labels);
  } finally {
    byId("predict").disabled = false;
    if (turn === state.turn) byId("status").textContent = state.shown ? countText(byId("labels").children.length, state.shown.threshold) : "";
  }
}

function countText(count, threshold) {
  if (count === 0) return threshold === undefined ? "No label was found." : "No label reaches the threshold.";
  return count === 1 ? "1 label" : `${count} labels`;
}

// That there is no label is about the text and threshold of before.
function forgetMissingLabels() {
  if (!state.shown || byId("labels").children.length) return;
  clearLabels();
  byId("status").textContent = "";
}

async function showLabels(labels) {
  const { model, scores, threshold } = state.shown;
  byId("hint").hidden = labels.length > 0;
  if (!labels.length) byId("hint").textContent = countText(0, threshold);
  const largest = scores === "probability" ? 1 : Math.max(...labels.map((one) => one.score), 0) || 1;
  byId("labels").replaceChildren(...labels.map((one) => {
    const code = titleOf(one) === one.label ? null : element("small", {}, ` ${one.label}`);
    const number = scores === "probability" ? `${(100 * one.score).toFixed(1)} %` : shortNumber(one.score);
    const inside = [
      element("span", { class: "line" }, element("span", { class: "name" }, titleOf(one), code),
        element("span", { class: "number", title: scores }, number)),
      bar(one.score / largest),
      one.words?.length ? element("span", { class: "words" }, one.words.join(", ")) : null,
    ];
    if (!model.explains) return element("li", {}, element("div", { class: "label" }, ...inside));
    const button = element("button", { type: "button", class: "label", "aria-pressed": "false", onclick: () => attempt(() => explainInView(one.label, button)) }, ...inside);
    return element("li", {}, button);
  }));
  if (labels.length && model.explains && model.reads === "text") await explain(labels[0].label, byId("labels").querySelector("button"));
}

async function explain(label, button) {
  const shown = state.shown;
  if (!shown) throw new Error("Find the labels of a document first");
  const path = modelPath(shown.model.name, "/explain");
  const turn = state.turn;
  const answer = shown.text === null
    ? await sendImage(path, shown.image, { labels: [label] })
    : await sendJson(path, { text: shown.text, labels: [label], terms: 12 });
  if (turn !== state.turn) return;
  for (const one of document.querySelectorAll("button.label")) one.setAttribute("aria-pressed", String(one === button));
  showExplanation(answer.explanations[0], answer.scores, shown.text, state.picture);
}

// On a click; it is below the labels, and often below the window.
async function explainInView(label, button) {
  await explain(label, button);
  byId("explanation").scrollIntoView({ block: "nearest" });
}

async function copyCurl() {
  const path = modelPath(state.model.name, "/predict");
  const image = state.model.reads === "image" ? (state.image?.name ?? "image.jpg") : null;
  const body = image ? options() : { text: byId("document").value, ...options() };
  const command = curlCommand(path, body, image);
  try {
    await navigator.clipboard.writeText(command);
    byId("status").textContent = "Copied; paste it into a terminal.";
  } catch {
    byId("status").textContent = command; // no permission: it can be selected here
  }
}

// --- files ---

async function takeFile(file) {
  if (!file) return;
  if (!state.model) throw new Error("there is no model yet");
  const image = state.model.reads === "image";
  if (!image && /\.(csv|tsv)$/i.test(file.name)) return takeTable(file, state.model); // of any size: rows are sent in portions
  if (file.size > state.limits.request_bytes) throw new Error(`${file.name} is larger than this server accepts`);
  if (image) return showImage(file);
  byId("document").value = await readText(file);
  return predict();
}

async function showImage(file) {
  const picture = new Image();
  picture.src = URL.createObjectURL(file);
  picture.alt = file.name;
  await picture.decode().catch(() => { throw new Error(`${file.name} is not an image that can be shown`); });
  state.image = file;
  state.picture = picture;
  byId("picture").replaceChildren(picture);
  return predict();
}

// --- label search ---

let typing;
async function searchLabels() {
  const query = byId("query").value;
  const found = await send(modelPath(state.model.name, `/labels?limit=20&query=${encodeURIComponent(query)}`));
  if (query !== byId("query").value) return;
  const rows = found.labels.map((one) => {
    const code = titleOf(one) === one.label ? "" : `${one.label}, `;
    const about = element("small", {}, ` ${code}${one.documents.toLocaleString("en")} ${one.documents === 1 ? "document" : "documents"}`);
    if (!state.model.explains) return element("li", {}, element("div", { class: "label" }, titleOf(one), about));
    const why = `Why does the ${state.model.reads} have this label, or not?`;
    return element("li", {}, element("button", { type: "button", title: why, onclick: () => attempt(() => explainInView(one.label, null)) }, titleOf(one), about));
  });
  if (!rows.length) rows.push(element("li", { class: "quiet" }, "No label matches."));
  if (found.more) rows.push(element("li", { class: "quiet" }, "There are more; type more letters."));
  byId("found").replaceChildren(...rows);
}

// --- events ---

const on = (id, name, work) => byId(id).addEventListener(name, (event) => attempt(() => work(event)));

followTheme(byId("theme"));
on("model", "change", () => chooseModel(byId("model").value));
on("predict", "click", predict);
on("curl", "click", copyCurl);
on("auto", "click", () => { byId("threshold").value = "auto"; forgetMissingLabels(); });
for (const id of ["threshold", "document"]) on(id, "input", forgetMissingLabels);
on("file", "change", (event) => takeFile(event.target.files[0]).finally(() => { event.target.value = ""; }));
on("csv", "change", (event) => takeTable(event.target.files[0], state.model).finally(() => { event.target.value = ""; }));
on("run-table", "click", () => runTable(state.model, options(), state.limits));
byId("stop-table").addEventListener("click", stopTable);
on("query", "input", () => { clearTimeout(typing); typing = setTimeout(() => attempt(searchLabels), 150); });
on("search", "toggle", () => byId("search").open && searchLabels());
on("card", "toggle", () => byId("card").open && showCard());
on("key-form", "submit", (event) => { event.preventDefault(); keepKey(byId("key").value.trim()); return loadModels(); });
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); attempt(predict); }
});
for (const name of ["dragenter", "dragover"]) {
  document.addEventListener(name, (event) => { event.preventDefault(); document.body.classList.add("dropping"); });
}
document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
document.addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("dropping");
  attempt(() => takeFile(event.dataTransfer.files[0]));
});
attempt(loadModels);
