// Files of the user as text: what is not UTF-8 is refused, because broken characters would be labelled and downloaded.
export async function readText(file) {
  const bytes = await file.arrayBuffer();
  let text = null;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
  }
  const begin = new Uint8Array(bytes, 0, Math.min(bytes.byteLength, 2));
  const wide = begin.length === 2 && [0xfeff, 0xfffe].includes(256 * begin[0] + begin[1]); // Excel's "Unicode text"
  if (text?.includes("\u0000") || (text === null && !wide && new Uint8Array(bytes).includes(0))) {
    throw new Error(`${file.name} is not a text file; text and CSV can be read`);
  }
  if (text === null) throw new Error(`${file.name} is not encoded as UTF-8; save it as UTF-8 (in Excel: CSV UTF-8), then choose it again`);
  return text;
}
