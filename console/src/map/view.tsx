import { t } from "../messages";
import type { ViewProps } from "../views";

export function MapView({ cluster }: ViewProps) {
  return <p>{t("count.chips", { count: cluster.chips.length })}</p>;
}
