// The lanes, all on one scale of seconds since the fault.
import { useEffect, useRef, useState } from "preact/hooks";
import { known, t } from "../messages";
import { Select, shortJob } from "../parts/Links";
import { clock, duration, Time } from "../shell/times";
import { lostOf, shownSeconds, ticks, type Lane } from "./lanes";
import { Swatch } from "./PhaseKey";
import { hours } from "./Recovery";

const BAR = 16;
const TOP = 15;

export function LaneChart({ lanes }: { lanes: readonly Lane[] }) {
  const box = useRef<HTMLOListElement>(null);
  const [width, setWidth] = useState(800);
  useEffect(() => {
    const host = box.current;
    if (!host) return undefined;
    const measure = (): void => {
      const track = host.querySelector(".track");
      if (track) setWidth(Math.max(120, track.clientWidth));
    };
    measure();
    const watch = new ResizeObserver(measure);
    watch.observe(host);
    return () => watch.disconnect();
  }, []);
  const longest = shownSeconds(lanes);
  const scale = (width - 1) / longest;
  const marks = ticks(longest, width / 90);
  return (
    <ol class="lanes" ref={box}>
      <li class="scale" aria-hidden="true">
        <span class="who" />
        <svg class="track" width={width} height={TOP}>
          {marks.map((mark) => (
            <text key={mark} x={mark * scale} y={11} text-anchor={mark === 0 ? "start" : mark * scale > width - 30 ? "end" : "middle"}>{mark === 0 ? t("recovery.fault") : duration(mark)}</text>
          ))}
        </svg>
        <span class="cost">{t("recovery.costs")}</span>
      </li>
      {lanes.map((lane) => (
        <LaneRow key={`${lane.recovery.job} ${lane.recovery.attempt} ${lane.begin}`} lane={lane} width={width} scale={scale} marks={marks} />
      ))}
    </ol>
  );
}

function LaneRow({ lane, width, scale, marks }: { lane: Lane; width: number; scale: number; marks: readonly number[] }) {
  const { recovery } = lane;
  const name = shortJob(recovery.job);
  const [open, setOpen] = useState(false);
  const cut = lane.seconds * scale > width;
  return (
    <li class={lane.finished ? "lane" : "lane open"}>
      <div class="who">
        <Select kind="job" name={recovery.job} shown={name} />
        <small class="dim">{t("recovery.attempt", { number: recovery.attempt })} · <code title={recovery.cause}>{recovery.code || recovery.cause}</code> · <Time at={new Date(lane.begin).toISOString()} /></small>
        <button type="button" class="fold" aria-expanded={open} aria-label={t("recovery.stagesOf", { job: name })} onClick={() => setOpen(!open)}>{t("recovery.stages")} {open ? "▾" : "▸"}</button>
      </div>
      <svg class="track" width={width} height={BAR + 2} role="img" aria-label={sentence(lane)}>
        {marks.map((mark) => <path key={mark} class="mark" d={`M${Math.round(mark * scale) + 0.5} 0v${BAR + 2}`} />)}
        {lane.segments.map((segment, index) => (
          <g key={index}>
            <title>{`${t(`recovery.phase.${segment.phase}`)} → ${segment.stage ? stageName(segment.stage) : t("recovery.goesOn")}: ${duration(segment.to - segment.from)}`}</title>
            <Swatch phase={segment.phase} x={Math.min(width, segment.from * scale)} y={1} width={Math.max(1, Math.min(width, segment.to * scale) - Math.min(width, segment.from * scale))} height={BAR} />
          </g>
        ))}
        {cut ? <path class="end goes-on" d={`M${width - 9} 0l4 ${BAR / 2 + 1}l-4 ${BAR / 2 + 1}m6 0l4 -${BAR / 2 + 1}l-4 -${BAR / 2 + 1}`} />
          : lane.finished
          ? <path class="end" d={`M${Math.min(width - 1, lane.seconds * scale)} 0v${BAR + 2}`} />
          : <path class="end goes-on" d={`M${Math.min(width - 5, lane.seconds * scale)} 2l4 ${BAR / 2 - 1}l-4 ${BAR / 2 - 1}`} />}
      </svg>
      <div class="cost">
        <strong>{duration(lane.seconds)}{lane.finished ? "" : "…"}</strong>
        <small class="dim">{hours(lostOf(lane) / 3600)}</small>
      </div>
      {open && <div class="opened">
        <table class="stages">
          <thead><tr><th scope="col">{t("recovery.stage")}</th><th scope="col" class="numeric">{t("recovery.after")}</th><th scope="col" class="numeric">{t("recovery.step")}</th><th scope="col">{t("recovery.at")}</th></tr></thead>
          <tbody>
            {[{ stage: "seen", from: 0, to: 0 }, ...lane.segments].map((segment, index) => (
              <tr key={index}>
                <td>{segment.stage ? stageName(segment.stage) : t("recovery.goesOn")}</td>
                <td class="numeric">{duration(segment.to)}</td>
                <td class="numeric">{index ? `+${duration(segment.to - segment.from)}` : ""}</td>
                <td>{clock(new Date(lane.begin + segment.to * 1000).toISOString())}</td>
              </tr>
            ))}
          </tbody>
        </table>
        <Reported lane={lane} />
      </div>}
    </li>
  );
}

/** What the training side reported by itself. */
function Reported({ lane }: { lane: Lane }) {
  const steps = lane.recovery.steps ?? [];
  if (!steps.length) return null;
  return (
    <>
      <h3>{t("recovery.reported")}</h3>
      <ul class="plain">
        {steps.slice(0, 40).map((step, index) => (
          <li key={index}><span class="dim">{step.time ? clock(step.time) : ""}</span> {[step.event, step.state].filter(Boolean).join(" → ")}{step.code ? <code> {step.code}</code> : null}</li>
        ))}
      </ul>
    </>
  );
}

export function stageName(stage: string): string {
  const key = `recovery.stage.${stage}`;
  return known(key) ? t(key) : stage;
}

function sentence(lane: Lane): string {
  const parts = lane.segments.map((one) => `${one.stage ? stageName(one.stage) : t("recovery.goesOn")} ${duration(one.to)}`);
  return t("recovery.sentence", { job: shortJob(lane.recovery.job), stages: parts.join(", ") });
}
