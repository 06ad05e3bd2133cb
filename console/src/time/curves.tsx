// Faults, evictions, bindings and waiting jobs over time; a click shows that moment.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { t } from "../messages";
import { usePreferences } from "../shell/preferences";
import { absolute, axisTimes } from "../shell/times";
import type { HistoryMoment } from "../types";

const SERIES = ["waiting", "bound", "faults", "evictions"] as const;
// dashes differ too: colour alone is not to be relied on
const LOOKS = {
  waiting: { light: "#5a666e", dark: "#9aa6ad", dash: [] as number[] },
  bound: { light: "#1f5f96", dark: "#7fb8e6", dash: [6, 2] },
  faults: { light: "#c9421c", dark: "#ff8f6b", dash: [2, 2] },
  evictions: { light: "#8a6a00", dark: "#f0c25a", dash: [8, 2, 2, 2] },
};

export function Curves({ moments, show }: { moments: readonly HistoryMoment[]; show: (moment: HistoryMoment) => void }) {
  const place = useRef<HTMLDivElement>(null);
  const { dark } = usePreferences();
  const chosen = useRef(show);
  chosen.current = show;
  useEffect(() => {
    const box = place.current!;
    const text = dark ? "#9aa6ad" : "#5a666e", line = dark ? "#2a3136" : "#e5e8e9";
    const axis = { stroke: text, font: "11px system-ui, sans-serif", grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1, size: 4 } };
    const plot = new uPlot({
      width: box.clientWidth, height: 180, legend: { live: true }, cursor: { points: { size: 6 }, drag: { x: true, y: false } },
      scales: { x: { time: true }, y: { range: (_, __, high) => [0, Math.max(1, high * 1.05)] } },
      axes: [{ ...axis, values: (_, marks) => axisTimes(marks) }, { ...axis, size: 44 }],
      series: [{ label: t("time.moment"), value: (_, at) => (at === null ? "" : absolute(new Date(at * 1000).toISOString())) }, ...SERIES.map((name) => ({
        label: t(`time.series.${name}`), stroke: LOOKS[name][dark ? "dark" : "light"], dash: LOOKS[name].dash, width: 1.25, points: { show: false },
        // a number holds until the next moment: nothing rises in between
        paths: uPlot.paths.stepped!({ align: 1 }),
      }))],
    }, data(moments), box);
    const click = (): void => {
      const moment = moments[plot.cursor.idx ?? -1];
      if (moment && plot.select.width < 3) chosen.current(moment);
    };
    plot.over.addEventListener("click", click);
    const watch = new ResizeObserver(() => plot.setSize({ width: box.clientWidth, height: 180 }));
    watch.observe(box);
    return () => {
      watch.disconnect();
      plot.destroy();
    };
  }, [moments, dark]);
  return <div ref={place} class="curves" role="img" aria-label={t("time.curvesLabel")} />;
}

function data(moments: readonly HistoryMoment[]): uPlot.AlignedData {
  return [moments.map((moment) => Date.parse(moment.time) / 1000), ...SERIES.map((name) => moments.map((moment) => moment[name]))] as uPlot.AlignedData;
}
