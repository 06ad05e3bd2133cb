// Words of commands that a reader copies into a shell: names of the cluster and the repository are data there too.

/** A word as a POSIX shell reads it back. */
export function shellWord(text: string): string {
  return /^[\w./@+:=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
