// The views in the order of the keys 1, 2, 3, …. A view is a function of the store and of the place in the address.
import type { ComponentType } from "preact";
import { MapView } from "./map/view";
import type { MessageKey } from "./messages";
import type { Cluster } from "./types";

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
  { id: "map", title: "view.map", component: MapView },
];
