// Findings in documents, each at its place: file, line and column.
import { t } from "../messages";
import { runs, severityClass } from "../parts/words";
import { Table } from "../shell/parts";
import { Timed } from "../shell/times";
import type { Finding } from "../types";

export function Findings({ caption, rows, leftOut = 0, name }: { caption: string; rows: readonly Finding[]; leftOut?: number; name?: string }) {
  return (
    <Table
      caption={caption}
      rows={rows}
      {...(name ? { name } : {})}
      id={(row) => `${row.where} ${row.field} ${row.message}`}
      page={40}
      leftOut={leftOut}
      columns={[
        { title: t("git.where"), cell: (row) => <code>{row.where}</code> },
        { title: t("git.severity"), cell: (row) => <span class={severityClass(row.severity)}>{row.severity || "error"}</span> },
        { title: t("git.finding"), cell: (row) => <>{row.field && <><code>{row.field}</code>: </>}<Timed text={runs(row.message)} /></> },
      ]}
    />
  );
}
