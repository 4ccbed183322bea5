// Loaded into Azurite before its own code: it ends with the twin, and learns of new accounts at once.
"use strict";
const fs = require("fs");
const path = require("path");

// The twin alone holds the other end of stdin. However it dies, this ends as a SIGTERM ends it: everything is saved.
process.stdin.on("data", read);
process.stdin.on("end", end);
process.stdin.on("error", end);
process.stdin.resume();
process.stdin.unref(); // once everything is saved, it is nothing to stay for

function end() {
  process.kill(process.pid, "SIGTERM");
  setTimeout(() => process.exit(0), 5000).unref(); // a request that hangs keeps nothing that is still to be saved
}

// Accounts are in a file beside the data. A line on stdin says that it has changed.
let news = false;
function read() {
  process.env.AZURITE_ACCOUNTS = fs.readFileSync("accounts", "utf8");
  news = true;
}
read();

// Azurite by itself looks at its accounts once a minute.
try {
  const inside = path.join(path.dirname(process.argv[1]), "..", "common", "AccountDataStore.js");
  const kind = require(inside).default.prototype;
  const known = kind.getAccount;
  kind.getAccount = function (name) {
    if (news) {
      news = false;
      this.refresh();
    }
    return known.call(this, name);
  };
} catch (error) {
  console.error(`new accounts take a minute: ${error.message}`);
}
