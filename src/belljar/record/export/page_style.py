"""How the page looks, by day and by night. It loads nothing: fonts are those of the reader."""

STYLE = """
:root{color-scheme:light dark;--bg:#fbfbfa;--card:#fff;--ink:#1f2328;--dim:#66707b;--line:#e3e5e8;
--code:#f5f6f7;--accent:#3b6ea8;--good:#1a7f4b;--bad:#b3261e;--k:#8250df;--s:#116329;--c:#6e7781;
--n:#0550ae;--b:#953800}
@media (prefers-color-scheme:dark){:root{--bg:#14171a;--card:#1b1f24;--ink:#e2e6ea;--dim:#8f99a3;
--line:#2d333b;--code:#22272e;--accent:#7fb0e6;--good:#57c98a;--bad:#ff8a80;--k:#c8a5ff;--s:#8fd19e;
--c:#8b949e;--n:#79b8ff;--b:#f2b077}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:60rem;margin:0 auto;padding:2rem 1rem 4rem}
h1{font-size:1.5rem;margin:0 0 1rem;overflow-wrap:anywhere}
h2{font-size:1rem;margin:0 0 .5rem}
header{margin:1.5rem 0;padding:1rem;border:1px solid var(--line);border-radius:10px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;margin:0;font-size:.87rem}
dt{color:var(--dim)}
dd{margin:0;overflow-wrap:anywhere}
section{margin:1rem 0;background:var(--card);border:1px solid var(--line);border-radius:10px;
overflow:hidden}
.bar{display:flex;gap:.75rem;align-items:center;padding:.4rem .9rem;font-size:.8rem;
border-bottom:1px solid var(--line)}
.count{font-family:ui-monospace,monospace;color:var(--accent)}
.badge{padding:.05rem .5rem;border-radius:99px;border:1px solid;font-weight:600}
.ok{color:var(--good)}
.bad{color:var(--bad)}
.cost{margin-left:auto;color:var(--dim);font-variant-numeric:tabular-nums}
pre{margin:0;font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;
white-space:pre-wrap;overflow-wrap:anywhere;max-height:32rem;overflow:auto;tab-size:4}
.code{padding:.8rem .9rem;background:var(--code)}
.out{padding:.7rem .9rem;display:grid;gap:.6rem;border-top:1px solid var(--line);min-width:0}
.out>*{min-width:0}
.stderr,.error{color:var(--bad)}
.background,.more{color:var(--dim)}
.error{border-left:3px solid var(--bad);padding-left:.7rem}
.main{border-left:3px solid var(--accent);padding-left:.7rem}
img{max-width:100%;height:auto;background:#fff;border-radius:6px}
iframe{width:100%;border:0;resize:vertical;background:var(--card);display:block}
.note,.event{margin:0;color:var(--dim);font-size:.85rem}
.event{margin:1rem 0;text-align:center;overflow-wrap:anywhere}
.note{border-left:3px solid var(--line);padding-left:.7rem}
a{color:var(--accent)}
.k{color:var(--k)}.s{color:var(--s)}.c{color:var(--c);font-style:italic}.n{color:var(--n)}
.b{color:var(--b)}
"""
