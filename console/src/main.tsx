import { render } from "preact";
import "./shell/console.css";
import "./parts/views.css";
import { App } from "./shell/app";
import { connect } from "./store/store";

connect();
render(<App />, document.getElementById("console")!);
