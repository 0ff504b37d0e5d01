// CSV in and out, as in RFC 4180.
const SEPARATORS = ["; ", " | ", "\n"];

export function delimiterOf(text) {
  const line = text.slice(0, text.search(/[\r\n]|$/));
  const counts = [",", ";", "\t"].map((one) => [line.split(one).length, one]);
  return counts.reduce((best, one) => (one[0] > best[0] ? one : best))[1];
}

export function parseTable(source) {
  const text = source.replace(/^\ufeff/, "");
  const delimiter = delimiterOf(text);
  const rows = [];
  let row = [], cell = "", quoted = false;
  for (let index = 0; index < text.length; index++) {
    const letter = text[index];
    if (quoted) {
      if (letter !== '"') cell += letter;
      else if (text[index + 1] === '"') { cell += '"'; index++; }
      else quoted = false;
    } else if (letter === '"' && cell === "") quoted = true;
    else if (letter === delimiter) { row.push(cell); cell = ""; }
    else if (letter === "\n" || letter === "\r") {
      if (letter === "\r" && text[index + 1] === "\n") index++;
      row.push(cell);
      if (row.length > 1 || row[0] !== "") rows.push(row);
      row = []; cell = "";
    } else cell += letter;
  }
  if (quoted) throw new Error("the file ends inside a quoted cell");
  if (cell !== "" || row.length) { row.push(cell); rows.push(row); }
  const [header, ...records] = rows;
  if (!header || !records.length) throw new Error("the file has no rows under its header");
  const wrong = records.findIndex((record) => record.length !== header.length);
  if (wrong >= 0) throw new Error(`row ${wrong + 2} has ${records[wrong].length} ${records[wrong].length === 1 ? "cell" : "cells"}, the header has ${header.length}`);
  return { header, records, delimiter };
}

const cellText = (cell, delimiter) =>
  cell.includes(delimiter) || /["\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell;

export function writeTable({ header, records, delimiter }) {
  return [header, ...records].map((row) => row.map((cell) => cellText(cell, delimiter)).join(delimiter)).join("\n") + "\n";
}

// The table with columns for labels, their texts and their scores.
export function withLabels({ header, records, delimiter }, results, scores) {
  const all = results.flatMap((result) => result.labels);
  const between = SEPARATORS.find((one) => !all.some((label) => (label.label + (label.text ?? "")).includes(one.trim() || one)))
    ?? SEPARATORS[2];
  const texts = all.some((label) => label.text !== undefined);
  const wanted = ["labels", ...(texts ? ["label_texts"] : []), scores === "probability" ? "probabilities" : "scores"];
  const columns = wanted.map((name) => (header.includes(name) ? `predicted_${name}` : name));
  const cells = results.map(({ labels }) => [
    labels.map((one) => one.label).join(between),
    ...(texts ? [labels.map((one) => one.text ?? "").join(between)] : []),
    labels.map((one) => String(one.score)).join(between),
  ]);
  return { header: [...header, ...columns], records: records.map((row, index) => [...row, ...cells[index]]), delimiter };
}

// Rows in requests that stay below the limits of the server.
export function* portions(texts, mostTexts, mostCharacters) {
  let begin = 0, size = 0;
  for (let index = 0; index < texts.length; index++) {
    if (index > begin && (index - begin >= mostTexts || size + texts[index].length > mostCharacters)) {
      yield [begin, index];
      begin = index; size = 0;
    }
    size += texts[index].length;
  }
  if (begin < texts.length) yield [begin, texts.length];
}
