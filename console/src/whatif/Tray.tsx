// What can be put onto the map: dragged there, or pressed here and then placed by pressing the map (touch has no dragging).
import { t } from "../messages";
import type { Draft, Kind } from "./changes";

/** What is being carried to the map. */
export type Carried = Pick<Draft, "kind"> & Partial<Pick<Draft, "branch">>;

const PLACED: readonly Kind[] = ["fault", "die", "drain", "cordon"];
const BRANCHES = 8;

/** What a drag says of itself, null where it is none of these. */
export function carried(text: string): Carried | null {
  if (text.startsWith("branch:")) return { kind: "branch", branch: text.slice(7) };
  const kind = [...PLACED, "job" as const].find((one) => one === text);
  return kind ? { kind } : null;
}

interface Props {
  code: string;
  branches: readonly string[];
  /** Whether the form holds the YAML of a job. */
  hasJob: boolean;
  armed: Carried | null;
  arm: (what: Carried | null) => void;
}

export function Tray({ code, branches, hasJob, armed, arm }: Props) {
  const items: (Carried & { text: string })[] = [
    ...PLACED.map((kind) => ({ kind, text: kind === "fault" ? `${t("whatif.kind.fault")} ${code}` : t(`whatif.kind.${kind}`) })),
    ...(hasJob ? [{ kind: "job" as const, text: t("whatif.jobOfForm") }] : []),
    ...branches.slice(0, BRANCHES).map((branch) => ({ kind: "branch" as const, branch, text: `${t("whatif.kind.branch")} ${branch}` })),
  ];
  return (
    <div class="tray" role="group" aria-label={t("whatif.tray")}>
      {items.map(({ text, ...what }) => {
        const pressed = armed?.kind === what.kind && armed.branch === what.branch;
        return (
          <button key={text} type="button" class="drag" draggable aria-pressed={pressed} onClick={() => arm(pressed ? null : what)}
            onDragStart={(event) => event.dataTransfer?.setData("text/plain", what.kind === "branch" ? `branch:${what.branch}` : what.kind)}>
            {text}
          </button>
        );
      })}
      <span class="dim" role="status">{armed ? t("whatif.armed") : t("whatif.drag")}</span>
    </div>
  );
}
