// The server's clock: ages and what still runs are counted by it, whatever the reader's machine says.

/** Less than this is how long an answer took, or too little to be seen. */
const TOO_LITTLE = 2000;
let ahead = 0;

/** The server said its time in an answer that was asked for and came at these times of this machine, ms. */
export function setServerTime(time: string, asked: number, came: number): void {
  const difference = Date.parse(time) - (asked + came) / 2;
  if (Number.isNaN(difference)) return;
  ahead = Math.abs(difference) > Math.max(TOO_LITTLE, (came - asked) / 2) ? difference : 0;
}

/** Unix ms by the server's clock. */
export function serverNow(): number {
  return Date.now() + ahead;
}
