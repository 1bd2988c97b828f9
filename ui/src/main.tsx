import { QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import "./early";
import { prime, queries } from "./api/queries";
import { renew } from "./app/renew";
import { router } from "./app/router";
import { start } from "./app/settings";
import "./style/base.css";

start();
window.addEventListener("vite:preloadError", () => void renew());

// The static content of index.html stays until the screen and its first answers are ready, so that both appear at once.
// If the server is slow, the screen appears without the answers.
const patience = 150; // milliseconds
const ready = Promise.all([prime(), router.load()]).catch(() => {}); // the screen shows the error
const late = new Promise((done) => setTimeout(done, patience));

function show() {
  const root = document.getElementById("root");
  if (root) {
    createRoot(root).render(
      <StrictMode>
        <QueryClientProvider client={queries}>
          <RouterProvider router={router} />
        </QueryClientProvider>
      </StrictMode>,
    );
  }
}

// The module must not await the screen: the chunks of screens import this module, and would wait for it.
void Promise.race([ready, late]).then(show);
