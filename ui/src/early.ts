// This script runs before the page's main script has been read. It applies the theme, so that the page never appears
// in the wrong one. It sends the first calls, so that their answers arrive earlier. It must stay small, and must not
// load React.
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
