// p50 and p99 on the scale of the whole table.
import { duration } from "../shell/times";

export function Spread({ p50, p99, most }: { p50: number | null; p99: number | null; most: number }) {
  if (p50 === null || p99 === null || most <= 0) return <span class="dim">–</span>;
  const [from, to] = [(p50 / most) * 94 + 3, (p99 / most) * 94 + 3];
  return (
    <svg class="spread" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label={`p50 ${duration(p50)}, p99 ${duration(p99)}`}>
      <path class="mark" d="M3 5h94" />
      <path class="range" d={`M${from} 5H${to}`} />
      <path class="median" d={`M${from} 1.5v7`} />
      <path class="last" d={`M${to} 2.5v5`} />
    </svg>
  );
}
