// What the server answers. Nothing else on the page fetches.

/** An answer that says what is wrong; `close` has spellings that would have worked. */
export class Refused extends Error {
  constructor(status, answer) {
    super(answer.error || `the server answered ${status}`);
    this.status = status;
    this.word = answer.word;
    this.close = answer.close || [];
    this.canGuess = answer.can_guess;
  }
}

function address(path, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const each of Array.isArray(value) ? value : [value]) if (each !== undefined && each !== "") query.append(name, each);
  }
  return `api/${path}?${query}`;
}

async function ask(path, parameters, signal) {
  let response;
  try {
    response = await fetch(address(path, parameters), { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, { error: "The server does not answer. Is `swivel explore` still running?" });
  }
  if (!response.ok) throw new Refused(response.status, await response.json().catch(() => ({})));
  return response;
}

/** Ask for JSON. */
export async function getJson(path, parameters = {}, signal = undefined) {
  const answer = await (await ask(path, parameters, signal)).json();
  if (answer.error) throw new Refused(200, answer); // a word that is not known
  return answer;
}

/** Ask for numbers: `Kind` is Float32Array or Uint16Array, as the server packs them (little-endian, as all browsers are). */
export async function getArray(path, parameters, Kind, signal = undefined) {
  return new Kind(await (await ask(path, parameters, signal)).arrayBuffer());
}

/** Ask for labels, and hand over each part as it arrives. */
export async function streamLabels(parameters, take, signal = undefined) {
  const response = await ask("map/labels", parameters, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) take(JSON.parse(line));
  }
}
