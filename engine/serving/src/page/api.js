// Calls of the server that the page came from.

const KEY = "ebb-api-key";

/** The key that the user gave, as long as this tab is open. */
export function key() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function keepKey(text) {
  if (text) sessionStorage.setItem(KEY, text);
  else sessionStorage.removeItem(KEY);
}

/** What an answer that is no success says of itself. */
async function reason(response) {
  const text = await response.text();
  let said = "";
  try {
    said = JSON.parse(text).error.message;
  } catch {
    said = text.trim();
  }
  if (response.status === 401) return `${said || "a key is needed"} (Settings: API key)`;
  return said || `the server answered ${response.status}`;
}

/** A POST of an object; throws an Error with the server's sentence. */
export async function post(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  if (key()) headers.Authorization = `Bearer ${key()}`;
  const response = await fetch(path, {
    method: "POST",
    headers,
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok) throw new Error(await reason(response));
  return response;
}

export async function get(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error(await reason(response));
  return response.json();
}

/** The objects of a stream of server-sent events; throws what the server tells as an error. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}
