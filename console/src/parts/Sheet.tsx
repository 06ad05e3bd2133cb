// A view that is a document: sections one below the other.
import type { ComponentChildren } from "preact";

export function Sheet({ name, children }: { name: string; children: ComponentChildren }) {
  return <div class={`sheet ${name}`}>{children}</div>;
}
