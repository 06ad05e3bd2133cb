// The key of the lanes: colour and texture of each phase, and its part of all time shown.
import { t } from "../messages";
import { duration } from "../shell/times";
import type { Phase } from "./lanes";

export function PhaseKey({ shares }: { shares: readonly { phase: Phase; seconds: number; share: number }[] }) {
  return (
    <ul class="phase-key" aria-label={t("recovery.key")}>
      {shares.map(({ phase, seconds, share }) => (
        <li key={phase} title={t(`recovery.phaseNote.${phase}`)}>
          <svg width="18" height="10" aria-hidden="true"><Swatch phase={phase} x={0} y={0} width={18} height={10} /></svg>
          {t(`recovery.phase.${phase}`)}
          {seconds > 0 && <span class="dim"> {duration(seconds)}, {Math.round(share * 100)} %</span>}
        </li>
      ))}
    </ul>
  );
}

/** A bar in a phase's colour, with marks that tell it from the others without colour. */
export function Swatch({ phase, x, y, width, height }: { phase: Phase; x: number; y: number; width: number; height: number }) {
  return (
    <g class={`phase ${phase}`}>
      <rect x={x} y={y} width={width} height={height} />
      <path d={texture(phase, x, y, width, height)} />
    </g>
  );
}

const GAP = 6;

/** Lines within a rectangle: none, upright, level, slanting one way, slanting the other. */
export function texture(phase: Phase, x: number, y: number, width: number, height: number): string {
  if (width < 2 || width > 4000) return "";
  const lines: string[] = [];
  if (phase === "placing") for (let at = y + 3; at < y + height; at += 4) lines.push(`M${x} ${at}h${width}`);
  else if (phase === "stopping") for (let at = x + GAP / 2; at < x + width; at += GAP) lines.push(`M${at} ${y}v${height}`);
  else if (phase === "starting" || phase === "repairing") {
    const up = phase === "starting";
    for (let at = x - height; at < x + width; at += GAP) {
      const from = Math.max(at, x);
      const to = Math.min(at + height, x + width);
      if (to <= from) continue;
      lines.push(up
        ? `M${from} ${y + height - (from - at)}L${to} ${y + height - (to - at)}`
        : `M${from} ${y + (from - at)}L${to} ${y + (to - at)}`);
    }
  }
  return lines.join("");
}
