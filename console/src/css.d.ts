// style sheets are imported for their effect: esbuild gathers them into assets/console.css
declare module "*.css";
