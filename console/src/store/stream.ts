// Server-sent events read with fetch: that lets a tab send its token and Last-Event-ID, and notice a silent server.
import { ApiError, address, headers } from "./api";

export interface StreamEvent {
  id: string;
  event: string;
  data: string;
}

/** The server sends a comment every 15 s; three missed ones mean that the connection is dead. */
const SILENCE = 45_000;
/** Bytes of one event that are read at most. */
const LARGEST = 64 * 1024 * 1024;

/**
 * Reads events until the stream ends. Raises ApiError where the server refuses, is not there or falls silent. `opened` is
 * called when the server has answered.
 */
export async function readStream(
  path: string,
  lastId: string,
  signal: AbortSignal,
  opened: () => void,
  receive: (event: StreamEvent) => void,
): Promise<void> {
  const silent = new AbortController();
  let timer = setTimeout(() => silent.abort(), SILENCE);
  try {
    const more: Record<string, string> = { Accept: "text/event-stream" };
    if (lastId) more["Last-Event-ID"] = lastId;
    const answer = await fetch(address(path), {
      headers: headers(more), signal: AbortSignal.any([signal, silent.signal]), cache: "no-store", credentials: "same-origin",
    });
    if (!answer.ok || !answer.body) throw new ApiError(answer.status, `${answer.status} ${answer.statusText}`.trim());
    opened();
    const parser = new EventParser(receive);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => silent.abort(), SILENCE);
      parser.feed(value);
    }
  } catch (error) {
    if (signal.aborted || error instanceof ApiError) throw error;
    throw new ApiError(0, silent.signal.aborted ? "the server fell silent" : error instanceof Error ? error.message : String(error));
  } finally {
    clearTimeout(timer);
  }
}

/** The event stream format of the HTML standard, fed in pieces. */
export class EventParser {
  #rest: string[] = [];
  #size = 0;
  #id = "";
  #event = "";
  #data: string[] = [];

  constructor(readonly receive: (event: StreamEvent) => void) {}

  feed(text: string): void {
    let begin = 0;
    for (let end = text.indexOf("\n"); end >= 0; end = text.indexOf("\n", begin)) {
      this.#rest.push(text.slice(begin, end));
      this.#line(this.#rest.join("").replace(/\r$/, ""));
      this.#rest = [];
      begin = end + 1;
    }
    if (begin < text.length) this.#rest.push(text.slice(begin));
    this.#size += text.length;
    if (this.#size > LARGEST) throw new ApiError(0, "an event is larger than 64 MiB");
  }

  #line(line: string): void {
    if (line === "") {
      if (this.#data.length) this.receive({ id: this.#id, event: this.#event || "message", data: this.#data.join("\n") });
      this.#event = "";
      this.#data = [];
      this.#size = 0;
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") this.#data.push(value);
    else if (field === "event") this.#event = value;
    else if (field === "id") this.#id = value;
  }
}
