// Parses server-sent events.

export interface StreamEvent {
  id: string;
  event: string;
  data: string;
}

/** Characters of one event that are read at most. */
const LARGEST = 64 * 1024 * 1024;

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
    if (this.#size > LARGEST) throw new Error("an event is larger than 64 MiB");
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
