// Runs before the page's own script has been read: it sets the theme, so that the first picture has it, and sends the
// first calls, so that their answers are there when the page asks. It must stay small, and must not load React.
import { ask } from "./api/ask";
import { first } from "./api/client";
import { read, themeOf } from "./app/stored";
import { apply } from "./style/tokens";

apply(themeOf(read()));
ask(first.live);
// The address of the overview ends with the workspace: /w/TENANT/WORKSPACE/.
if (window.location.pathname.split("/").slice(4).join("") === "") {
  ask(first.attention);
  ask(first.assets);
}
