// Server-sent events read with fetch: that lets a tab send its token and Last-Event-ID, and notice a silent server.
import { ApiError, address, headers } from "./api";
import { EventParser, type StreamEvent } from "./events";

/** The server sends a comment every 15 s; three missed ones mean that the connection is dead. */
const SILENCE = 45_000;

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
