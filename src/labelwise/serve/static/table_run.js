// The rows of a CSV file: choose the column, label all rows in portions, download the result.
import { modelPath, patiently, sendJson } from "./api.js";
import { byId, element } from "./dom.js";
import { parseTable, portions, withLabels, writeTable } from "./table.js";

const MOST_ROWS = 100;
const ROOM = 1000; // bytes of a request next to its texts
let table = null, running = null;

const counted = (count) => `${count.toLocaleString("en")} ${count === 1 ? "row" : "rows"}`;
const rowNumber = (index) => (index + 2).toLocaleString("en"); // as a spreadsheet counts: the header is row 1
const setStatus = (text) => { byId("table-status").textContent = text; };

function refuseWhileRunning() {
  if (running) throw new Error(`${running.name} is being labelled; wait for the result, or press Stop`);
}

export async function takeTable(file) {
  if (!file) return;
  byId("table").open = true;
  refuseWhileRunning();
  const content = await file.text();
  refuseWhileRunning(); // a run may have begun while the file was read
  let parsed;
  try {
    parsed = parseTable(content);
  } catch (error) {
    throw new Error(`${file.name}: ${error.message}`);
  }
  table = { ...parsed, name: file.name };
  byId("download").hidden = true;
  const { header, records } = table;
  const likely = header.findIndex((name) => /text|title|abstract|description/i.test(name));
  byId("column").replaceChildren(...header.map((name, index) => element("option", { value: index, selected: index === Math.max(0, likely) }, name)));
  setRunning(null);
  setStatus(`${file.name}: ${counted(records.length)}`);
}

function setRunning(run) {
  running = run;
  byId("column").disabled = byId("run-table").disabled = run !== null || table === null;
  byId("stop-table").hidden = byId("table-progress").hidden = run === null;
}

function isTooLong(text, limits) {
  if (text.length > limits.text_characters && Array.from(text).length > limits.text_characters) return true;
  return 6 * text.length > limits.request_bytes - ROOM && new Blob([JSON.stringify(text)]).size > limits.request_bytes - ROOM;
}

// The server counts documents within the request.
const withRow = (message, rows) =>
  message.replace(/^(?:document |\/documents\/)(\d+)/, (whole, number) => (rows[number] === undefined ? whole : `row ${rowNumber(rows[number])}`));

export async function runTable(model, asked, limits) {
  refuseWhileRunning();
  const chosen = table, column = Number(byId("column").value), results = [];
  const texts = chosen.records.map((row) => row[column]), total = texts.length;
  const tooLong = texts.flatMap((text, index) => (isTooLong(text, limits) ? [index] : []));
  const leftOut = new Set(tooLong), run = { name: chosen.name, stopped: false };
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
    const labelled = done - tooLong.filter((index) => index < done).length;
    if (labelled) offer({ ...chosen, records: chosen.records.slice(0, done) }, results, scores, done < total);
    setStatus([
      done < total ? `${chosen.name}: ended after ${done.toLocaleString("en")} of ${counted(total)}.` : `${chosen.name}: ${counted(labelled)} labelled.`,
      tooLong.length ? `Too long, without labels: ${rowList(tooLong)}. A text may have ${limits.text_characters.toLocaleString("en")} characters.` : "",
    ].join(" ").trim());
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
