// The form that puts changes together: by keyboard alone, or by dragging onto the map.
import { useMemo } from "preact/hooks";
import { t } from "../messages";
import { Choices } from "../parts/Choices";
import type { Cluster } from "../types";
import { type Draft, KINDS } from "./changes";

const SUGGESTED = 100;
const USUAL_CODES = ["80C98001", "80E01801", "80CB8009", "81078603", "8C1F8608", "80E18402", "28000037"];

interface Props {
  cluster: Cluster;
  draft: Draft;
  change: (part: Partial<Draft>) => void;
  add: () => void;
  addFiles: (files: Iterable<File>) => void;
  /** Branches beside the one in force. */
  branches: readonly string[];
  problem: string;
}

export function Form({ cluster, draft, change, add, addFiles, branches, problem }: Props) {
  const nodes = useMemo(() => {
    const wanted = draft.node.trim().toLowerCase();
    const found: string[] = [];
    for (const name of cluster.nodes.name) {
      if (found.length >= SUGGESTED) break;
      if (name.toLowerCase().includes(wanted)) found.push(name);
    }
    return found;
  }, [cluster.nodes.name, draft.node]);
  const codes = useMemo(() => [...new Set([...cluster.faults.slice(0, 500).map((one) => one.code), ...USUAL_CODES])].slice(0, 60), [cluster.faults]);
  const onNode = draft.kind === "fault" || draft.kind === "die" || draft.kind === "drain" || draft.kind === "cordon";
  return (
    <form class="draft" onSubmit={(event) => { event.preventDefault(); add(); }}>
      <Choices label={t("whatif.kind")} of={KINDS} value={draft.kind} nameOf={(one) => t(`whatif.kind.${one}`)} choose={(kind) => change({ kind })} />
      {onNode && (
        <label>{t("whatif.node")}
          <input list="whatif-nodes" value={draft.node} autocomplete="off" spellcheck={false} onInput={(event) => change({ node: event.currentTarget.value })} />
          <datalist id="whatif-nodes">{nodes.map((name) => <option key={name} value={name} />)}</datalist>
        </label>
      )}
      {draft.kind === "fault" && (
        <>
          <label>{t("whatif.chip")}<input class="short" inputMode="numeric" value={draft.chip} onInput={(event) => change({ chip: event.currentTarget.value })} /></label>
          <label>{t("whatif.code")}
            <input class="code" list="whatif-codes" value={draft.code} spellcheck={false} autocomplete="off" onInput={(event) => change({ code: event.currentTarget.value })} />
            <datalist id="whatif-codes">{codes.map((code) => <option key={code} value={code} />)}</datalist>
          </label>
        </>
      )}
      {draft.kind === "branch" && (
        <label>{t("whatif.branch")}
          <select value={draft.branch} onChange={(event) => change({ branch: event.currentTarget.value })}>
            <option value="">–</option>
            {branches.map((name) => <option key={name} value={name}>{name}</option>)}
          </select>
        </label>
      )}
      {draft.kind === "job" && (
        <>
          <label class="wide">{t("whatif.yaml")}
            <textarea rows={6} spellcheck={false} value={draft.yaml} onInput={(event) => change({ yaml: event.currentTarget.value })} />
          </label>
          <label>{t("whatif.file")}
            <input type="file" multiple accept=".yaml,.yml,.json" onChange={(event) => { addFiles(event.currentTarget.files ?? []); event.currentTarget.value = ""; }} />
          </label>
        </>
      )}
      <button type="submit">{t("whatif.add")}</button>
      {problem && <p class="problem" role="alert">{problem}</p>}
    </form>
  );
}
