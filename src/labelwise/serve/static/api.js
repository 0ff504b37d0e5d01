// Requests to the server this page is from, with the API key of this tab if there is one.
export class Refusal extends Error {
  constructor(status, detail, retryAfter) {
    super(detail);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

export const keepKey = (key) => sessionStorage.setItem("api-key", key);
export const hasKey = () => Boolean(sessionStorage.getItem("api-key"));

export async function send(path, options = {}) {
  const headers = { ...(options.headers ?? {}) };
  const key = sessionStorage.getItem("api-key");
  if (key) headers["X-API-Key"] = key;
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch {
    throw new Refusal(0, "the server does not answer; is it still running?");
  }
  const content = await answer.json().catch(() => null);
  if (!answer.ok) {
    const retry = Number(answer.headers.get("Retry-After")) || 0;
    throw new Refusal(answer.status, content?.detail ?? `the server answered ${answer.status}`, retry);
  }
  return content;
}

export const modelPath = (name, what = "") => `v1/models/${encodeURIComponent(name)}${what}`;

export const sendJson = (path, value) =>
  send(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(value) });

export function sendImage(path, file, options) {
  const form = new FormData();
  form.append("image", file);
  for (const [name, value] of Object.entries(options)) {
    for (const one of Array.isArray(value) ? value : [value]) form.append(name, one);
  }
  return send(path, { method: "POST", body: form });
}

// Tries again while the server is busy and the answer is wanted, as often as it asks for.
export async function patiently(request, { tries = 20, wanted = () => true } = {}) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await request();
    } catch (refusal) {
      if (![429, 503].includes(refusal.status) || attempt >= tries || !wanted()) throw refusal;
      await new Promise((resolve) => setTimeout(resolve, 1000 * Math.min(refusal.retryAfter || 1, 10)));
    }
  }
}

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

export function curlCommand(path, body, image) {
  const parts = ["curl", quoted(new URL(path, location.href).href)];
  if (hasKey()) parts.push("-H", `"X-API-Key: $LABELWISE_KEY"`);
  if (image) {
    parts.push("-F", quoted(`image=@${image}`));
    for (const [name, value] of Object.entries(body)) parts.push("-F", quoted(`${name}=${value}`));
  } else {
    parts.push("-H", quoted("Content-Type: application/json"), "-d", quoted(JSON.stringify(body)));
  }
  return parts.join(" ");
}
