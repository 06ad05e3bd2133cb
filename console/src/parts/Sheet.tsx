// A view that is a document: sections one below the other; a link may lead to the rows of one (`rows=NAME`).
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { usePlace } from "../shell/place";

export function Sheet({ name, children }: { name: string; children: ComponentChildren }) {
  const { params } = usePlace();
  const rows = params["rows"] ?? "";
  const sheet = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!rows) return;
    const found = [...sheet.current!.querySelectorAll<HTMLElement>("[data-rows]")].find((one) => one.dataset["rows"] === rows);
    found?.scrollIntoView({ block: "start" });
    found?.focus({ preventScroll: true });
  }, [rows]);
  return <div class={`sheet ${name}`} ref={sheet}>{children}</div>;
}
