// The rows of a CSV file: choose the column, label all rows in portions, download the result.
import { modelPath, patiently, send, sendJson } from "./api.js";
import { byId, element } from "./dom.js";
import { readText } from "./files.js";
import { parseTable, portions, withLabels, writeTable } from "./table.js";

const MOST_ROWS = 100;
const ROOM = 1000; // bytes of a request next to its texts
let table = null, running = null, taken = 0;

const counted = (count) => `${count.toLocaleString("en")} ${count === 1 ? "row" : "rows"}`;
const rowNumber = (index) => (index + 2).toLocaleString("en"); // as a spreadsheet counts: the header is row 1
const setStatus = (text) => { byId("table-status").textContent = text; };

function refuseWhileRunning() {
  if (running) throw new Error(`${running.name} is being labelled; wait for the result, or press Stop`);
}

export async function takeTable(file, model) {
  if (!file) return;
  byId("table").open = true;
  refuseWhileRunning();
  clearTable(); // whatever becomes of this file, the rows of the one before are not meant any more
  const turn = ++taken;
  let parsed;
  try {
    parsed = parseTable(await readText(file));
  } catch (error) {
    throw error.message.startsWith(file.name) ? error : new Error(`${file.name}: ${error.message}`);
  }
  if (turn !== taken) return; // another file was chosen meanwhile
  table = { ...parsed, name: file.name };
  await offerColumns(model);
  if (turn !== taken) return;
  setRunning(null);
  setStatus(`${file.name}: ${counted(table.records.length)}`);
}

function clearTable() {
  table = null;
  byId("download").hidden = true;
  byId("columns").replaceChildren();
  setRunning(null);
  setStatus("");
}

// The columns of the table; those that the model was trained on are chosen, if the table has them.
export async function offerColumns(model) {
  const offered = table;
  if (!offered || running) return;
  const reading = model && await send(modelPath(model.name)).then((about) => about.card.reading, () => null);
  if (table !== offered || running) return;
  const { header } = table;
  table.trained = trainedColumns(header, reading);
  const likely = Math.max(0, header.findIndex((name) => /text|title|abstract|description/i.test(name)));
  const chosen = table.trained.length ? table.trained : [likely];
  byId("columns").replaceChildren(...header.map((name, index) =>
    element("label", {}, element("input", { type: "checkbox", value: index, checked: chosen.includes(index) }), ` ${name}`)));
}

// The positions of the columns that the training texts were read from, in their order; none if one is missing.
function trainedColumns(header, reading) {
  if (!reading) return [];
  const name = reading.options?.text_column ?? "text";
  const columns = (header.includes(name) ? [name] : name.split("+")).map((one) => header.indexOf(one));
  return columns.includes(-1) ? [] : columns;
}

// The positions of the chosen columns: first those of the training texts in their order, because it may matter.
function chosenColumns({ trained }) {
  const chosen = Array.from(byId("columns").querySelectorAll("input:checked"), (one) => Number(one.value));
  if (!chosen.length) throw new Error("Choose a column with the text first");
  return [...trained.filter((one) => chosen.includes(one)), ...chosen.filter((one) => !trained.includes(one))];
}

function setRunning(run) {
  running = run;
  byId("column").disabled = byId("run-table").disabled = run !== null || table === null;
  byId("stop-table").hidden = byId("table-progress").hidden = run === null;
}

const isBlank = (text) => /^[\s\x1c-\x1f\x85]*$/.test(text); // as the server sees it

function isTooLong(text, limits) {
  if (text.length > limits.text_characters && Array.from(text).length > limits.text_characters) return true;
  return 6 * text.length > limits.request_bytes - ROOM && new Blob([JSON.stringify(text)]).size > limits.request_bytes - ROOM;
}

// The server counts documents within the request.
const withRow = (message, rows) =>
  message.replace(/^(?:document |\/documents\/)(\d+)/, (whole, number) => (rows[number] === undefined ? whole : `row ${rowNumber(rows[number])}`));

export async function runTable(model, asked, limits) {
  refuseWhileRunning();
  const chosen = table, columns = chosenColumns(table), results = [];
  const texts = chosen.records.map((row) => columns.map((one) => row[one]).join(" ")), total = texts.length; // as `labelwise predict`
  const tooLong = texts.flatMap((text, index) => (isTooLong(text, limits) ? [index] : []));
  const blank = texts.flatMap((text, index) => (isBlank(text) ? [index] : []));
  const leftOut = new Set([...tooLong, ...blank]), run = { name: chosen.name, stopped: false };
  let scores = "score", done = 0;
  byId("download").hidden = true;
  byId("table-progress").value = 0;
  setRunning(run);
  setStatus(`${chosen.name}: 0 of ${counted(total)}`);
  try {
    for (const [begin, end] of portions(texts, Math.min(MOST_ROWS, limits.documents), limits.request_bytes / 8)) {
      const rows = [];
      for (let index = begin; index < end; index++) if (!leftOut.has(index)) rows.push(index);
      if (rows.length) {
        const body = { documents: rows.map((index) => texts[index]), ...asked };
        const answer = await patiently(() => sendJson(modelPath(model.name, "/predict"), body), { wanted: () => !run.stopped })
          .catch((refusal) => { refusal.message = withRow(refusal.message, rows); throw refusal; });
        rows.forEach((index, number) => { results[index] = answer.results[number]; });
        scores = answer.scores;
      }
      done = end;
      byId("table-progress").value = done / total;
      setStatus(`${chosen.name}: ${done.toLocaleString("en")} of ${counted(total)}`);
      if (run.stopped) break;
    }
  } catch (error) {
    if (!run.stopped) throw error;
  } finally {
    setRunning(null);
    const labelled = done - Array.from(leftOut).filter((index) => index < done).length;
    if (labelled) offer({ ...chosen, records: chosen.records.slice(0, done) }, results, scores, done < total);
    setStatus([
      done < total ? `${chosen.name}: ended after ${done.toLocaleString("en")} of ${counted(total)}.` : `${chosen.name}: ${counted(labelled)} labelled.`,
      blank.length ? `Without text, without labels: ${rowList(blank)}.` : "",
      tooLong.length ? `Too long, without labels: ${rowList(tooLong)}. A text may have ${limits.text_characters.toLocaleString("en")} characters.` : "",
    ].filter(Boolean).join(" "));
  }
}

function rowList(rows) {
  const first = rows.slice(0, 10).map(rowNumber).join(", ");
  return `${rows.length === 1 ? "row" : "rows"} ${first}${rows.length > 10 ? ` and ${rows.length - 10} more` : ""}`;
}

export function stopTable() {
  if (running) running.stopped = true;
}

function offer(part, results, scores, ended) {
  const content = writeTable(withLabels(part, part.records.map((row, index) => results[index] ?? { labels: [] }), scores));
  const link = byId("download");
  if (link.href) URL.revokeObjectURL(link.href);
  link.href = URL.createObjectURL(new Blob(["\ufeff", content], { type: "text/csv" }));
  link.download = part.name.replace(/(\.[^.]*)?$/, "-labels.csv");
  link.textContent = ended ? `Download the first ${counted(part.records.length)}` : "Download the result";
  link.hidden = false;
  link.focus();
}
