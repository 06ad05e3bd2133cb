// The slider under every view: moments as they were recorded, the present at its right end.
import { bisector } from "d3-array";
import { scaleTime } from "d3-scale";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { t } from "../messages";
import { useKeys } from "../shell/keys";
import { go, place, usePlace } from "../shell/place";
import { usePreferences } from "../shell/preferences";
import { absolute, clock } from "../shell/times";
import { get } from "../store/api";
import { current, momentOf, useStore } from "../store/store";
import type { HistoryMoment } from "../types";
import { atOrBefore, useHistory } from "./history";

/** Milliseconds for each moment while it plays. */
const BEAT = 400;
const OF = ["fault", "eviction", "revision"] as const;
const THUMB = 12;

export function TimeBar() {
  const { moments } = useHistory();
  const { at } = usePlace();
  const waiting = useStore((state) => state.waiting);
  const time = useStore((state) => state.cluster?.moment.time ?? "");
  const [playing, setPlaying] = useState(false);
  const [of, setOf] = useState<(typeof OF)[number]>("fault");
  const [said, setSaid] = useState("");
  const known = useMemo(() => new Map(moments.map((moment, index) => [moment.id, index])), [moments]);
  const last = moments.length;
  const positionOf = (id: string): number => (id ? known.get(atOrBefore(moments, id)?.id ?? "") ?? last : last);
  const position = positionOf(at);
  const show = (index: number): void => {
    setSaid("");
    go({ at: moments[index]?.id ?? "" }, place().at ? "replace" : "push");
  };
  // from where the address is: keys may come faster than the page is drawn
  const step = (by: number): void => show(Math.min(last, Math.max(0, positionOf(place().at) + by)));
  const jump = async (direction: 1 | -1): Promise<void> => {
    if (!moments.length) return;
    // from the present, the newest recorded moment is the first before it
    const from = at ? moments[positionOf(at)]?.id ?? "present" : "present";
    const answer = await get<{ id: string | null }>(`next/${encodeURIComponent(from)}`, { of, direction }).catch(() => ({ id: null }));
    if (answer.id) go({ at: answer.id }, at ? "replace" : "push");
    setSaid(answer.id ? "" : t("time.noJump", { of: t(`time.of.${of}`) }));
  };
  useEffect(() => {
    if (!playing || waiting) return undefined;
    if (position >= last) {
      setPlaying(false);
      return undefined;
    }
    const timer = setTimeout(() => step(1), BEAT);
    return () => clearTimeout(timer);
  }, [playing, waiting, position, last]);
  // the neighbours of a recorded moment are read while the reader looks at it, so that a step only draws
  useEffect(() => {
    if (!at || waiting || position >= last) return undefined;
    const timer = setTimeout(() => {
      for (const near of [moments[position + 1], moments[position - 1]]) if (near) momentOf(near.id).catch(() => undefined);
    }, 30);
    return () => clearTimeout(timer);
  }, [at, waiting, position, known]);
  const play = (): void => {
    if (!playing && position >= last && last) show(Math.max(0, last - 60));
    setPlaying(!playing && last > 0);
  };
  useKeys({
    ",": () => step(-1), ".": () => step(1), "<": () => void jump(-1), ">": () => void jump(1), n: () => go({ at: "" }),
    " ": (event) => ((event.target as HTMLElement).closest("button, a, summary") ? undefined : play()),
  });
  const shown = moments[position];
  return (
    <section class={`timebar ${at ? "past" : ""}`} aria-label={t("time.bar")}>
      <div class="transport">
        <button type="button" onClick={() => step(-1)} disabled={position <= 0} aria-label={t("time.before")} title={t("time.before")}>‹</button>
        <button type="button" onClick={play} disabled={!last} aria-pressed={playing}>{playing ? t("time.pause") : t("time.play")}</button>
        <button type="button" onClick={() => step(1)} disabled={position >= last} aria-label={t("time.after")} title={t("time.after")}>›</button>
      </div>
      <div class="track">
        <Strip moments={moments} position={position} />
        <input type="range" min={0} max={Math.max(1, last)} step={1} value={last ? position : 1} disabled={!last} aria-label={t("time.slider")}
          aria-valuetext={shown ? t("time.position", { time: absolute(shown.time), faults: shown.faults ?? 0, waiting: shown.waiting ?? 0 }) : t("time.present")}
          onInput={(event) => show(Number(event.currentTarget.value))} />
      </div>
      <p class="moment" role="status">
        {at ? <><strong>{time ? absolute(time) : at}</strong>{waiting ? " …" : ""}</> : last ? <span>{t("time.present")} <time class="dim minor" dateTime={time} title={absolute(time)}>{time ? clock(time) : ""}</time></span> : <span class="dim">{t("time.none")}</span>}
        {said ? <span class="warn"> {said}</span> : null}
      </p>
      <div class="transport jump" role="group" aria-label={t("time.jump")}>
        <button type="button" onClick={() => void jump(-1)} disabled={!last} aria-label={t("time.jumpBack", { of: t(`time.of.${of}`) })} title={t("time.jumpBack", { of: t(`time.of.${of}`) })}>«</button>
        <select aria-label={t("time.jump")} value={of} onChange={(event) => setOf(event.currentTarget.value as typeof of)}>
          {OF.map((one) => <option value={one}>{t(`time.of.${one}`)}</option>)}
        </select>
        <button type="button" onClick={() => void jump(1)} disabled={!last} aria-label={t("time.jumpOn", { of: t(`time.of.${of}`) })} title={t("time.jumpOn", { of: t(`time.of.${of}`) })}>»</button>
      </div>
      <button type="button" onClick={() => go({ at: "" })} disabled={!at} aria-keyshortcuts="n">{t("time.present")}</button>
    </section>
  );
}

const byTime = bisector<HistoryMoment, Date>((moment) => new Date(moment.time)).left;

/** Curve of waiting jobs, and marks of faults, evictions and revisions, over the slider. */
function Strip({ moments, position }: { moments: readonly HistoryMoment[]; position: number }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const { dark } = usePreferences();
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const watch = new ResizeObserver(() => setWidth(canvas.current?.clientWidth ?? 0));
    watch.observe(canvas.current!);
    return () => watch.disconnect();
  }, []);
  useEffect(() => {
    const element = canvas.current!, context = element.getContext("2d")!;
    const ratio = Math.min(2, devicePixelRatio || 1), height = element.clientHeight;
    element.width = Math.round(width * ratio);
    element.height = Math.round(height * ratio);
    context.scale(ratio, ratio);
    if (!moments.length || !width) return;
    const space = (width - THUMB) / Math.max(1, moments.length);
    const x = (index: number): number => THUMB / 2 + index * space;
    const dim = dark ? "#9aa6ad" : "#5a666e", line = dark ? "#323a40" : "#d9dddf", bad = dark ? "#d9532b" : "#c9421c";
    const base = height - 12;
    const most = Math.max(1, ...moments.map((moment) => moment.waiting ?? 0));
    context.fillStyle = line;
    context.beginPath();
    context.moveTo(x(0), base);
    moments.forEach((moment, index) => context.lineTo(x(index), base - ((moment.waiting ?? 0) / most) * (base - 8)));
    context.lineTo(x(moments.length - 1), base);
    context.fill();
    let written = -99;
    // moments of a few minutes need the seconds too
    const short = Date.parse(moments.at(-1)!.time) - Date.parse(moments[0]!.time) < 10 * 60_000;
    const room = short ? 62 : 44;
    const scale = scaleTime().domain([new Date(moments[0]!.time), new Date(moments.at(-1)!.time)]);
    context.font = "10px system-ui, sans-serif";
    for (const tick of scale.ticks(Math.max(2, Math.floor(width / 90)))) {
      const at = x(byTime(moments, tick));
      if (at - written < room || at > width - 30) continue;
      written = at;
      context.fillStyle = dim;
      context.fillRect(Math.round(at), base, 1, 3);
      context.fillText(clock(tick.toISOString()).slice(0, short ? 8 : 5), Math.max(0, at - 13), height - 1);
    }
    let revision = moments[0]!.revision;
    moments.forEach((moment, index) => {
      const at = Math.round(x(index));
      // where "the next fault" jumps to: a fault that was not there before
      const came = (moment.faults ?? 0) - (index ? moments[index - 1]!.faults ?? 0 : 0);
      if (came > 0) {
        const tall = Math.min(base - 6, 4 + 3 * came);
        context.fillStyle = bad;
        context.fillRect(at, base - tall, Math.max(1, Math.min(2, space)), tall);
      }
      if (moment.evictions) triangle(context, at, 6, dark ? "#f0a63c" : "#b06a00");
      if (moment.revision !== revision) diamond(context, at, 3.5, dark ? "#7fb8e6" : "#1f5f96");
      revision = moment.revision;
    });
    if (position < moments.length) {
      context.fillStyle = dark ? "#7fb8e6" : "#1f5f96";
      context.fillRect(Math.round(x(position)) - 1, 0, 2, base);
    }
  }, [moments, width, dark, position]);
  return <canvas ref={canvas} aria-hidden="true" />;
}

function triangle(context: CanvasRenderingContext2D, x: number, y: number, colour: string): void {
  context.fillStyle = colour;
  context.beginPath();
  context.moveTo(x - 3.5, y - 4);
  context.lineTo(x + 3.5, y - 4);
  context.lineTo(x, y + 2);
  context.fill();
}

function diamond(context: CanvasRenderingContext2D, x: number, y: number, colour: string): void {
  context.fillStyle = colour;
  context.beginPath();
  context.moveTo(x, y - 3.5);
  context.lineTo(x + 3.5, y);
  context.lineTo(x, y + 3.5);
  context.lineTo(x - 3.5, y);
  context.fill();
}

/** Id of the moment that is shown; in the present that of the newest recorded one. */
export function momentShown(moments: readonly HistoryMoment[]): string {
  return current().at || moments.at(-1)?.id || "";
}
