// A row of figures, each with its name under it.
import type { ComponentChildren } from "preact";

export function Figures({ of }: { of: readonly { name: string; value: ComponentChildren; note?: ComponentChildren }[] }) {
  return (
    <dl class="figures">
      {of.map(({ name, value, note }) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}{note !== undefined && <small class="dim">{note}</small>}</dd>
        </div>
      ))}
    </dl>
  );
}
