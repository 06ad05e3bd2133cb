import { render } from "preact";
import "./shell/console.css";
import "./parts/views.css";
import "./map/map.css";
import "uplot/dist/uPlot.min.css";
import "./time/time.css";
import { App } from "./shell/app";
import { onPlace, place } from "./shell/place";
import { connect, showMoment } from "./store/store";

// the moment of the address is asked for at once, not after the next frame
onPlace(() => void showMoment(place().at));
void showMoment(place().at);
connect();
render(<App />, document.getElementById("console")!);
