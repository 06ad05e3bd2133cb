// Words of commands that a reader copies into a shell: names of the cluster and the repository are data there too.

/** A word as a POSIX shell reads it back. */
export function shellWord(text: string): string {
  return /^[\w./@+:=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** Text in which a run of chips is short: "Ascend910-0, Ascend910-1, Ascend910-2" is "Ascend910-0..2". */
export function runs(text: string): string {
  return text.replace(/\b(\w+-)(\d{1,3})(?:, \1\d{1,3}){2,}(?!\d)/g, (whole: string, prefix: string, first: string) => {
    const numbers = whole.split(", ").map((one) => Number(one.slice(prefix.length)));
    return numbers.every((number, at) => number === Number(first) + at) ? `${prefix}${first}..${numbers.at(-1)}` : whole;
  });
}

/** The class of a finding's severity. */
export function severityClass(severity: string): string {
  return severity === "info" ? "dim" : severity === "warning" ? "warn" : "bad";
}
