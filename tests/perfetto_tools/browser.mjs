// A Perfetto UI in headless Chromium, told what to do by lines of JSON on stdin; one line of JSON answers each.
// Nothing but the address's own server may be reached.
import {mkdtempSync, rmSync} from 'node:fs';
import {tmpdir} from 'node:os';
import {join} from 'node:path';
import {createInterface} from 'node:readline';
import {chromium} from 'playwright-core';

const [address, width, height] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const allowed = [new URL(address).origin, ...process.argv.slice(5)];  // a second server: the first only opens a window on it
const profile = mkdtempSync(join(tmpdir(), 'tracer-ui-'));
const problems = [];
const browser = await chromium.launchPersistentContext(profile, {
  executablePath: process.env.CHROMIUM || '/usr/bin/chromium', headless: true, viewport: {width, height},
  serviceWorkers: 'block',
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
         '--disable-component-update', '--disable-sync', '--disable-dev-shm-usage'],
});

async function start() {
  await browser.route('**/*', (route) => {
    const mine = allowed.some((origin) => route.request().url().startsWith(`${origin}/`));
    return mine ? route.continue() : route.abort();
  });
  let page = browser.pages()[0] ?? await browser.newPage();
  page.setDefaultTimeout(60_000);
  page.on('pageerror', (error) => problems.push(error.message));
  await browser.addInitScript(() => {
    // No greeting about cookies and statistics over the pictures.
    localStorage.setItem('perfettoSettings', JSON.stringify({analyticsEnable: false}));
  });
  if (allowed.length === 1) {
    await page.goto(address);
  } else {
    const opening = browser.waitForEvent('page');
    await page.goto(address);
    // Headless Chromium holds windows back that no one asked for: press the button, as people would.
    page.getByRole('button').click({timeout: 2_000}).catch(() => {});
    page = await opening;
    page.on('pageerror', (error) => problems.push(error.message));
  }
  await page.waitForFunction(() => window.app?.trace && !window.app.isLoadingTrace && window.waitForPerfettoIdle);
  await idle(page);
  return page;
}

// Some panels never stop redrawing themselves, so there is an end to the waiting.
const idle = (page) => page.evaluate(
    () => Promise.race([window.waitForPerfettoIdle(300), new Promise((done) => setTimeout(done, 5_000))]));

const does = {
  evaluate: (page, {script}) => page.evaluate(`(async () => { const app = window.app, trace = app.trace; ${script} })()`),
  click: (page, {x, y}) => page.mouse.click(x, y),
  press: (page, {text}) => page.getByText(text, {exact: true}).first().click({timeout: 10_000}),
  text: (page, {selector}) => page.locator(selector).allInnerTexts(),
  screenshot: (page, {path, clip}) => page.screenshot({path, clip}),
  problems: async (page) => [...problems, ...await page.locator('.pf-modal-dialog').allInnerTexts()],
};

let page;
const say = (answer) => process.stdout.write(JSON.stringify(answer) + '\n');
try {
  page = await start();
  say({value: 'ready'});
  for await (const line of createInterface({input: process.stdin})) {
    const order = JSON.parse(line);
    try {
      const value = await does[order.do](page, order);
      await idle(page);
      say({value: order.do === 'screenshot' ? null : value ?? null});
    } catch (error) {
      say({error: String(error.message ?? error)});
    }
  }
} catch (error) {
  say({error: `${error.message ?? error}\n${problems.join('\n')}`});
} finally {
  await browser.close();
  rmSync(profile, {recursive: true, force: true});
}
