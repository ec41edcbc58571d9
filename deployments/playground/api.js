// The server's two endpoints that the page needs, and what can go wrong with them.

/** `kind`: gone, key, busy, starting or refused. */
export class Problem extends Error {
  constructor(kind, message) {
    super(message);
    this.kind = kind;
  }
}

const GONE = "The server does not answer. Is it still running?";
const BROKEN = "The connection broke off before the end of the answer. Is the server still running?";
const TOO_LONG = "The conversation is longer than the model can read. Shorten the message, ask for fewer tokens, or press New conversation.";
const KINDS = { 401: "key", 403: "refused", 429: "busy", 503: "starting" };
const WORDS = {
  key: "The server asks for a valid API key. Enter it at the top of the page.",
  busy: "The server is full: as many requests run and wait as it admits. Try again in a moment.",
  starting: "The server is starting, or has lost a replica. Try again in a moment.",
};

async function call(path, key, options = {}) {
  const headers = { ...(key ? { Authorization: `Bearer ${key}` } : {}), ...options.headers };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    throw options.signal?.aborted ? error : new Problem("gone", GONE);
  }
  if (response.ok) return response;
  const error = (await response.json().catch(() => null))?.error;
  if (error?.code === "context_length_exceeded") throw new Problem("refused", TOO_LONG);
  const kind = KINDS[response.status] ?? (error ? "refused" : "gone");
  throw new Problem(kind, WORDS[kind] ?? error?.message ?? GONE);
}

export async function live(seconds, key) {
  const response = await call(`spindle/live?seconds=${seconds}`, key, { cache: "no-store" });
  return response.json();
}

/** The choices of a streamed chat's events. */
export async function* chat(body, key, signal) {
  const response = await call("v1/chat/completions", key, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, spindle: { trace: true } }),
    signal,
  });
  for await (const data of dataOf(response.body, signal)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new Problem(KINDS[event.error.status] ?? "refused", event.error.message);
    if (event.choices.length) yield event.choices[0];
  }
  throw new Problem("gone", BROKEN);
}

/** The data of server-sent events. */
async function* dataOf(stream, signal) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      yield* events.filter((event) => event.startsWith("data: ")).map((event) => event.slice(6));
    }
  } catch (error) {
    throw signal.aborted ? error : new Problem("gone", BROKEN);
  } finally {
    reader.cancel().catch(() => {});
  }
}
