// Starts the page.

import * as chat from "./chat.js";
import * as load from "./load.js";
import * as pool from "./pool.js";

chat.start();
load.start();
pool.start(load.suggest);
