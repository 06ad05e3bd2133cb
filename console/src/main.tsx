import { render } from "preact";
import "./shell/console.css";
import "./parts/views.css";
import "./map/map.css";
import "uplot/dist/uPlot.min.css";
import "./time/time.css";
import { App } from "./shell/app";
import { connect } from "./store/store";

connect();
render(<App />, document.getElementById("console")!);
