// Looks at an HTML report in headless Chromium and prints what it found as JSON: node html_check.mjs CHROMIUM FILE OUT
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(new URL("perfetto_tools/package.json", import.meta.url));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const [executablePath, file, out] = process.argv.slice(2);
const url = pathToFileURL(file).href;
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const found = { requests: [], messages: [], violations: {}, paper: {}, overflow: {} };

for (const colorScheme of ["light", "dark"]) {
  const page = await browser.newPage({ colorScheme, viewport: { width: 1200, height: 900 } });
  page.on("request", (request) => found.requests.push(request.url()));
  page.on("console", (message) => found.messages.push(message.text()));
  page.on("pageerror", (error) => found.messages.push(String(error)));
  page.on("dialog", (dialog) => { found.messages.push("dialog"); dialog.dismiss(); });
  await page.goto(url);
  await page.screenshot({ path: `${out}/${colorScheme}.png`, fullPage: true });
  found.paper[colorScheme] = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => axe.run());
  found.violations[colorScheme] = violations.map((v) => `${v.id}: ${v.nodes[0].html} ${v.nodes[0].failureSummary}`);
  for (const width of [1200, 360]) {
    await page.setViewportSize({ width, height: 900 });
    found.overflow[width] = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  }
  await page.close();
}

const context = await browser.newContext({ javaScriptEnabled: false, viewport: { width: 1200, height: 900 } });
const page = await context.newPage();
await page.goto(url);
found.text = await page.innerText("main");
found.elements = {};
for (const tag of ["script", "iframe", "img", "svg", "form", "object", "link"]) {
  found.elements[tag] = await page.locator(tag).count();
}
await page.keyboard.press("Tab");
found.first_focus = await page.locator(":focus").innerText();
const stall = page.locator("svg a").first();
if (await stall.count()) {
  await stall.click();
  found.target = await page.locator(":target").innerText();
}
await page.emulateMedia({ media: "print", colorScheme: "dark" });
found.print_paper = await page.locator("body").evaluate((body) => getComputedStyle(body).backgroundColor);
found.pdf_bytes = (await page.pdf({ path: `${out}/print.pdf`, format: "A4" })).length;
await browser.close();
console.log(JSON.stringify(found));
