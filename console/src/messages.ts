// Every text of the page, in English. A translation is another table with these keys. {names} are filled in as text.
// Texts that the server sends (reasons, explanations, findings) are data and are shown as they come.

const MESSAGES = {
  // views
  "view.map": "Map",
  "view.recovery": "Recovery",
  "view.queue": "Queue",
  "view.git": "Git",
  "view.whatif": "What if",
  "view.faults": "Faults",
  "view.time": "Time",

  // shell
  "shell.name": "Belay",
  "shell.skip": "Skip to the view",
  "shell.views": "Views",
  "shell.revision": "revision {id}",
  "shell.revisionNone": "no revision yet",
  "shell.shard": "shard {name}",
  "shell.reading": "Reading the cluster …",
  "shell.unknownView": "There is no view “{view}”.",
  "shell.toMap": "Go to the map",
  "shell.plain": "Plain page",
  "shell.help": "Keys",
  "shell.close": "Close",
  "shell.theme": "Theme",
  "shell.theme.auto": "Auto",
  "shell.theme.light": "Light",
  "shell.theme.dark": "Dark",
  "shell.times": "Times",
  "shell.times.relative": "Ago",
  "shell.times.absolute": "Clock",
  "shell.problems": "{count} could not be read",
  "shell.crashed": "This view failed: {reason}",
  "shell.again": "Draw it again",
  "shell.copy": "Copy",
  "shell.copied": "Copied",
  "shell.copyFailed": "Press Ctrl+C",
  "shell.more": "Show {count} more",
  "shell.leftOut": "and {count} more that the server left out",
  "shell.nothing": "Nothing to show.",
  "shell.failed": "Not available: {reason}",
  "shell.loading": "Reading …",

  // connection
  "connection.connecting": "connecting",
  "connection.live": "live",
  "connection.still": "recording",
  "connection.paused": "paused",
  "connection.lost": "lost",
  "connection.refused": "refused",
  "connection.banner": "The server has not answered for {duration} ({reason}). What you see is of {time} and may be out of date.",
  "connection.retryIn": "Next try in {duration}.",
  "connection.retry": "Try now",
  "connection.refused.title": "Not signed in",
  "connection.refused.text": "The server shows nothing without a token of the cluster: {reason}",
  "connection.refused.how": "A token that may read the status ConfigMaps, for instance",
  "connection.token": "Token",
  "connection.signIn": "Show the cluster",
  "connection.past": "You look at {time}.",
  "connection.pastProblem": "That moment cannot be shown: {reason}",

  // keys
  "keys.title": "Keys",
  "keys.views": "the views, left to right",
  "keys.moments": "moment before, moment after",
  "keys.faults": "fault before, fault after",
  "keys.play": "play and pause",
  "keys.present": "back to the present",
  "keys.escape": "clear the selection",
  "keys.theme": "theme: auto, light, dark",
  "keys.help": "this list",
  "keys.map": "On the map",
  "keys.map.arrows": "next chip",
  "keys.map.nodes": "node before, node after",
  "keys.map.trouble": "next, previous chip that is not healthy",
  "keys.map.select": "select the chip; again: its job",
  "keys.map.zoom": "zoom in, out, to everything, to the selection",

  // time
  "time.now": "now",
  "time.ago": "{duration} ago",
  "time.ahead": "in {duration}",

  // numbers
  "count.chips": "{count} chips",
  "count.nodes": "{count} nodes",
  "count.jobs": "{count} jobs",

  // the map
  "map.title": "Map of chips",
} as const;

export type MessageKey = keyof typeof MESSAGES;

const numbers = new Intl.NumberFormat("en");

/** A text of the catalogue with its fields filled in; numbers get separators. */
export function t(key: MessageKey, fields: Readonly<Record<string, string | number>> = {}): string {
  return MESSAGES[key].replace(/\{(\w+)\}/g, (whole, name: string) => {
    const value = fields[name];
    return value === undefined ? whole : typeof value === "number" ? numbers.format(value) : value;
  });
}

/** A number with separators: 80,000. */
export function number(value: number, digits = 0): string {
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

/** Whether the catalogue has a text under a key that is made at run time. */
export function known(key: string): key is MessageKey {
  return Object.hasOwn(MESSAGES, key);
}
