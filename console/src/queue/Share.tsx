// Use of one resource of a queue: what is used, a mark at what the queue deserves, within what it may use at most.
import { number, t } from "../messages";

export function Share({ name, used, deserved, capacity }: { name: string; used: number; deserved: number | null; capacity: number | null }) {
  const most = Math.max(used, deserved ?? 0, capacity ?? 0, 1);
  const at = (value: number): number => (value / most) * 100;
  const short = name.split("/").at(-1)!;
  const over = deserved !== null && used > deserved;
  const words = [t("queue.used", { used: number(used) })];
  if (deserved !== null) words.push(t("queue.deserved", { deserved: number(deserved) }));
  if (capacity !== null) words.push(t("queue.capacity", { capacity: number(capacity) }));
  return (
    <div class="share">
      <svg viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label={`${short}: ${words.join(", ")}`}>
        <rect class="whole" width="100" height="10" />
        <rect class={over ? "used over" : "used"} width={at(used)} height="10" />
        {deserved !== null && <path class="deserved" d={`M${Math.min(99.7, at(deserved))} 0v10`} />}
      </svg>
      <span class="dim small" title={name}>{words.join(" · ")} <span class="resource">{short}</span></span>
    </div>
  );
}
