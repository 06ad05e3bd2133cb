// The branches of the repository, and the plan of one beside what runs: what merging it would do.
import { t } from "../messages";
import { OutcomeLists } from "../parts/Outcome";
import { shellWord } from "../parts/words";
import { Answered, Command, Table } from "../shell/parts";
import { setParam, usePlace } from "../shell/place";
import { Time, useNow } from "../shell/times";
import { useApi, useStore } from "../store/store";
import type { Branch, BranchPlan } from "../types";
import { Diff } from "./Diff";
import { Findings } from "./Findings";
import { short } from "./Git";

/** A pull or merge request, as the server names it. */
const REQUEST = /^(pull|merge-requests)\/[1-9]\d{0,8}$/;
/** Milliseconds after which branches are read again: a push to one changes nothing in the cluster's document. */
const REREAD = 60_000;

export function Branches() {
  const can = useStore((state) => state.viewer?.can.branches ?? false);
  const revision = useStore((state) => state.present?.moment.revision ?? "");
  const minute = Math.floor(useNow() / REREAD);
  const answer = useApi<{ branches: readonly Branch[]; problem: string }>(can ? "branches" : null, {}, { of: `${revision} ${minute}`, pause: 5000 });
  const { params } = usePlace();
  const chosen = params["branch"] ?? "";
  if (!can) return null;
  return (
    <section aria-labelledby="branches">
      <Answered answer={answer}>
        {(data) => (
          <>
            {data.problem && <p class="warn">{data.problem}</p>}
            <Table
              caption={t("git.branches")}
              rows={data.branches}
              id={(row) => row.name}
              page={15}
              empty={t("git.noBranches")}
              selected={(row) => row.name === chosen}
              columns={[
                { title: t("git.branch"), cell: (row) => <><code>{row.name}</code>{row.current && <span class="good small"> {t("git.isInForce")}</span>}</> },
                { title: t("git.subject"), cell: (row) => <>{row.subject}<div class="dim small">{row.author}</div></> },
                { title: t("git.time"), cell: (row) => <Time at={row.time} /> },
                { title: t("git.plan"), cell: (row) => (row.current ? null : (
                  <button type="button" aria-pressed={row.name === chosen} aria-label={t("git.planOf", { name: row.name })} onClick={() => setParam("branch", row.name === chosen ? "" : row.name)}>{t("git.show")}</button>
                )) },
              ]}
            />
          </>
        )}
      </Answered>
      {chosen && <Plan name={chosen} of={answer.data ? `${revision} ${answer.data.branches.find((one) => one.name === chosen)?.revision ?? ""}` : ""} />}
    </section>
  );
}

/** `of`: the revisions that it compares; another one makes the plan old. */
function Plan({ name, of }: { name: string; of: string }) {
  const answer = useApi<BranchPlan>(`plan/${encodeURIComponent(name)}`, {}, { of, pause: 5000 });
  return (
    <section class="plan" aria-labelledby="plan">
      <h2 id="plan">{t("git.planTitle", { name })}</h2>
      <Answered answer={answer}>
        {(plan) => (
          <>
            <p>
              {t("git.planOf2", { revision: short(plan.revision), base: short(plan.base) })}{" "}
              <span class="dim">{Object.entries(plan.actions).sort((a, b) => b[1] - a[1]).map(([action, count]) => `${count} × ${action}`).join(", ") || t("git.noActions")}</span>
            </p>
            <ul class="plain sentences">{plan.text.slice(0, 40).map((line, index) => <li key={index}>{line}</li>)}</ul>
            {plan.findings.length > 0 && <Findings caption={t("git.findings", { count: plan.findings.length })} rows={plan.findings} />}
            <OutcomeLists outcome={plan} />
            <Diff lines={plan.diff} label={t("git.diff", { name })} />
            <div class="commands">
              <Command text={`${REQUEST.test(name) ? `git fetch origin ${name}/head && git switch --detach FETCH_HEAD` : `git switch ${shellWord(name)}`} && belay plan --desired .`} />
              <Command text={REQUEST.test(name) ? `git fetch origin ${name}/head && git merge FETCH_HEAD` : `git merge ${shellWord(name)}`} note={t("git.mergeNote")} />
            </div>
          </>
        )}
      </Answered>
    </section>
  );
}
