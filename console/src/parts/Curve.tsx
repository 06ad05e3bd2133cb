// Curves over time, drawn by uPlot in the colours of the page.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { usePreferences } from "../shell/preferences";
import { absolute, axisTimes } from "../shell/times";

export interface Line {
  name: string;
  /** Name of a colour of the style sheet, as in `--colour`. */
  colour: string;
  values: readonly (number | null)[];
  /** Points instead of a line. */
  points?: boolean;
  /** Steps: a count holds until the next moment. */
  steps?: boolean;
  dash?: readonly number[];
}

interface Props {
  /** What the curves say in one sentence, for readers of screens. */
  label: string;
  /** Unix seconds, rising. */
  times: readonly number[];
  lines: readonly Line[];
  height?: number;
  format?: (value: number) => string;
}

export function Curve({ label, times, lines, height = 140, format = String }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const { dark } = usePreferences();
  useEffect(() => {
    const host = box.current;
    if (!host) return undefined;
    const style = getComputedStyle(host);
    // a variable may hold light-dark(); only a real property is resolved to one colour
    const probe = host.appendChild(document.createElement("i"));
    const colour = (name: string): string => {
      probe.style.color = `var(--${name})`;
      return getComputedStyle(probe).color;
    };
    const axis = { stroke: colour("dim"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: `11px ${style.fontFamily}` };
    const plot = new uPlot(
      {
        width: Math.max(200, host.clientWidth),
        height,
        cursor: { y: false, points: { size: 6 } },
        legend: { live: true, show: lines.length > 1 },
        scales: { y: { range: (_, __, most) => [0, Math.max(1, most * 1.1)] } },
        axes: [{ ...axis, values: (_, marks) => axisTimes(marks) }, { ...axis, size: 56, values: (_, marks) => marks.map((mark) => format(mark)) }],
        series: [
          { value: (_, at) => (at === null ? "" : absolute(new Date(at * 1000).toISOString())) },
          ...lines.map((line): uPlot.Series => ({
            label: line.name,
            stroke: colour(line.colour),
            width: line.points ? 0 : 1.5,
            ...(line.dash ? { dash: [...line.dash] } : {}),
            points: { show: line.points ?? false, size: 6, fill: colour(line.colour) },
            ...(line.steps ? { paths: uPlot.paths.stepped!({ align: 1 }) } : {}),
            value: (_, value) => (value === null || value === undefined ? "–" : format(value)),
          })),
        ],
      },
      [times.slice(), ...lines.map((line) => line.values.slice())] as unknown as uPlot.AlignedData,
      host,
    );
    probe.remove();
    const watch = new ResizeObserver(() => plot.setSize({ width: Math.max(200, host.clientWidth), height }));
    watch.observe(host);
    return () => {
      watch.disconnect();
      plot.destroy();
    };
  }, [times, lines, dark, height]);
  return <div class="curve" ref={box} role="img" aria-label={label} />;
}
