// A question that is asked again while its answer grows old: one at a time, and with a pause in between.

export interface Asking {
  /** What the answer is about has changed. An answer that is on its way may not know it yet: it is asked once more. */
  again(): void;
  /** Nobody wants the answer any more. */
  end(): void;
}

/** Asks at once. `pause`: milliseconds from one question to the next at least. */
export function ask<T>(
  question: (signal: AbortSignal) => Promise<T>, pause: number, on: { done: (answer: T) => void; failed: (error: unknown) => void },
): Asking {
  const leave = new AbortController();
  let running = false, wanted = false, begun = 0;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const start = async (): Promise<void> => {
    timer = undefined;
    running = true;
    wanted = false;
    begun = Date.now();
    try {
      const answer = await question(leave.signal);
      if (!leave.signal.aborted) on.done(answer);
    } catch (error) {
      if (!leave.signal.aborted) on.failed(error);
    }
    running = false;
    if (wanted) later();
  };
  const later = (): void => {
    wanted = true;
    if (running || timer !== undefined || leave.signal.aborted) return;
    timer = setTimeout(() => void start(), Math.max(0, begun + pause - Date.now()));
  };
  void start();
  return {
    again: later,
    end: () => {
      leave.abort();
      clearTimeout(timer);
    },
  };
}
