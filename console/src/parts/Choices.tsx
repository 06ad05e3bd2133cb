// A few choices side by side, one of them chosen.
export function Choices<T extends string>({ label, of, value, nameOf, choose }: {
  label: string; of: readonly T[]; value: T; nameOf: (one: T) => string; choose: (one: T) => void;
}) {
  return (
    <div class="segments" role="group" aria-label={label}>
      {of.map((one) => <button key={one} type="button" aria-pressed={one === value} onClick={() => choose(one)}>{nameOf(one)}</button>)}
    </div>
  );
}
