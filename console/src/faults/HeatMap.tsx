// How many chips showed what, by time: a table whose cells are shaded, so that it reads without colour too.
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { number, t } from "../messages";
import { absolute, clock } from "../shell/times";
import type { Heat } from "../types";

const STEP = 20;

export function HeatMap({ heat }: { heat: Heat }) {
  const [shown, setShown] = useState(STEP);
  const region = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    // where it is wider than the screen, the newest comes first
    if (region.current) region.current.scrollLeft = region.current.scrollWidth;
  }, [heat.by, heat.buckets.length]);
  const rows = heat.rows.filter((row) => row.total > 0);
  if (!rows.length || !heat.buckets.length) return <p class="dim">{t("faults.noHeat")}</p>;
  const most = rows.reduce((top, row) => row.cells.reduce((a, b) => Math.max(a, b), top), 1);
  const every = Math.max(1, Math.ceil(heat.buckets.length / 8));
  return (
    <section aria-labelledby="heat">
      <h2 id="heat">{t("faults.heat")} <span class="dim">{t("faults.heatOf", { from: heat.from ? absolute(heat.from) : "–", to: heat.to ? absolute(heat.to) : "–" })}</span></h2>
      <div ref={region} class="scroll heat" role="region" aria-label={t("faults.heat")} tabIndex={0}>
        <table aria-labelledby="heat">
          <thead>
            <tr>
              <th scope="col">{t(`faults.by.${heat.by}`)}</th>
              {heat.buckets.map((bucket, index) => (
                <th key={bucket} scope="col"><span class={index % every ? "hidden" : ""}>{label(bucket, heat.bucketSeconds)}</span></th>
              ))}
              <th scope="col" class="numeric">{t("faults.total")}</th>
            </tr>
          </thead>
          <tbody>
            {rows.slice(0, shown).map((row) => (
              <tr key={row.name}>
                <th scope="row"><code>{row.name}</code></th>
                {row.cells.map((value, index) => (
                  <td key={index} class={`cell h${value ? Math.max(1, Math.ceil((value / most) * 5)) : 0}`} title={value ? `${row.name}, ${absolute(heat.buckets[index]!)}: ${value}` : undefined}>{value || ""}</td>
                ))}
                <td class="numeric">{number(row.total)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {rows.length > shown && <button type="button" class="more" onClick={() => setShown(shown + STEP)}>{t("shell.more", { count: Math.min(STEP, rows.length - shown) })}</button>}
      {heat.leftOut > 0 && <p class="dim">{t("shell.leftOut", { count: heat.leftOut })}</p>}
    </section>
  );
}

function label(bucket: string, seconds: number): string {
  return seconds >= 86_400 ? absolute(bucket).slice(5, 10) : clock(bucket).slice(0, seconds < 60 ? 8 : 5);
}
