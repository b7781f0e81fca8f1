import { render } from "solid-js/web";

import { signIn } from "./api";
import { App } from "./App";
import { run } from "./live";
import { follow } from "./router";
import { say } from "./ui";
import "./style.css";

follow((code) => void signIn(code).catch((error: Error) => say(error.message, true)));
render(() => <App />, document.getElementById("app")!);
void run();
