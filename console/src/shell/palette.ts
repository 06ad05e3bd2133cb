// Colours and textures of states. They differ in lightness and in texture too, so that neither colour vision nor a
// printer decides what is seen (hues after Okabe and Ito, "Color Universal Design").
export type Texture = "plain" | "diagonal" | "dots" | "cross" | "rows" | "columns" | "frame" | "hollow";

export interface Look {
  light: string;
  dark: string;
  /** What the texture is drawn with. */
  inkLight: string;
  inkDark: string;
  texture: Texture;
  /** How urgently a person should see it; the most urgent is drawn where several share a pixel. */
  weight: number;
}

const LOOKS: Readonly<Record<string, Look>> = {
  free: { light: "#c9d3da", dark: "#3b4750", inkLight: "#c9d3da", inkDark: "#3b4750", texture: "plain", weight: 0 },
  healthy: { light: "#4a86b8", dark: "#4c8fc4", inkLight: "#4a86b8", inkDark: "#4c8fc4", texture: "plain", weight: 1 },
  unknown: { light: "#ffffff", dark: "#15191c", inkLight: "#5f6b74", inkDark: "#98a4ac", texture: "hollow", weight: 2 },
  recovering: { light: "#8fd0c0", dark: "#2f8f7e", inkLight: "#0b6b5a", inkDark: "#b4efe0", texture: "columns", weight: 3 },
  "sub-healthy": { light: "#f2d774", dark: "#b9962b", inkLight: "#8a6a00", inkDark: "#ffeaa3", texture: "diagonal", weight: 4 },
  suspect: { light: "#f0a63c", dark: "#c97f16", inkLight: "#6e4100", inkDark: "#ffe0b0", texture: "dots", weight: 5 },
  resetting: { light: "#c3a4dc", dark: "#8a62ad", inkLight: "#57307a", inkDark: "#ead8fa", texture: "rows", weight: 6 },
  "manually-isolated": { light: "#e9d5cd", dark: "#4a2b22", inkLight: "#7a2a10", inkDark: "#f0a58c", texture: "frame", weight: 7 },
  isolated: { light: "#c9421c", dark: "#d9532b", inkLight: "#ffffff", inkDark: "#1b0b06", texture: "cross", weight: 8 },
};

/** How a state is shown; `used`: a job holds the chip. States of nodes are shown as the like of chips. */
export function lookOf(state: string, used = true): Look {
  if (state === "healthy" && !used) return LOOKS["free"]!;
  if (state === "pre-isolated") return LOOKS["manually-isolated"]!;
  if (state === "not-ready") return LOOKS["isolated"]!;
  return LOOKS[state] ?? LOOKS["unknown"]!;
}
