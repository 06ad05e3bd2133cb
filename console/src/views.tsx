// The views in the order of the keys 1, 2, 3, …. A view is a function of the store and of the place in the address.
import type { ComponentType } from "preact";
import { FaultsView } from "./faults/Faults";
import { GitView } from "./git/Git";
import { OverviewView } from "./overview/Overview";
import { MapView } from "./map/view";
import type { MessageKey } from "./messages";
import { QueueView } from "./queue/Queue";
import { RecoveryView } from "./recovery/Recovery";
import { TimeView } from "./time/view";
import type { Cluster } from "./types";
import { WhatIfView } from "./whatif/WhatIf";

export interface ViewProps {
  /** The document to show: the present one, or that of the moment in the address. */
  cluster: Cluster;
}

export interface View {
  id: string;
  title: MessageKey;
  component: ComponentType<ViewProps>;
}

export const VIEWS: readonly View[] = [
  { id: "overview", title: "view.overview", component: OverviewView },
  { id: "map", title: "view.map", component: MapView },
  { id: "recovery", title: "view.recovery", component: RecoveryView },
  { id: "queue", title: "view.queue", component: QueueView },
  { id: "git", title: "view.git", component: GitView },
  { id: "whatif", title: "view.whatif", component: WhatIfView },
  { id: "faults", title: "view.faults", component: FaultsView },
  { id: "time", title: "view.time", component: TimeView },
];
