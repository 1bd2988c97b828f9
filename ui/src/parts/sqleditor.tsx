import {
  acceptCompletion,
  autocompletion,
  type Completion,
  type CompletionContext,
  type CompletionResult,
  closeBrackets,
  closeBracketsKeymap,
  completionKeymap,
  completionStatus,
} from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { SQLDialect, sql } from "@codemirror/lang-sql";
import { bracketMatching, HighlightStyle, syntaxHighlighting } from "@codemirror/language";
import { Compartment, EditorState, Prec, StateEffect, StateField } from "@codemirror/state";
import { Decoration, type DecorationSet, drawSelection, EditorView, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { useEffect, useRef } from "react";
import { columnsIn, namespaceOf, quoted, type Table } from "../api/catalog";

// The reserved words of DuckDB, and other words that begin statements and clauses.
const words = `add all analyse analyze and anti any array as asc asof at between both by case cast check collate column
columns constraint create cross cube current_date current_time current_timestamp default deferrable delete desc describe
distinct do else end except exclude exists explain false fetch filter first following for foreign from full glob group
grouping groups having if ilike in initially inner insert intersect interval into is isnull join lambda last lateral
leading left like limit macro materialized natural no not notnull null nulls offset on only or order outer over partition
pivot placing positional preceding primary qualify range recursive references rename replace returning right rollup row
rows sample select semi set sets show similar some summarize symmetric table tablesample temp temporary then ties to
trailing true try_cast unbounded union unique unnest unpivot update using values variadic view when where window with
within without`;

const types = `bigint bit blob bool boolean bytea char date datetime decimal double enum float float4 float8 hugeint int
int1 int2 int4 int8 integer json list long map numeric real short signed smallint string struct text time timestamp
timestamptz timetz tinyint ubigint uhugeint uinteger usmallint utinyint uuid varchar`;

const listed = (text: string) => text.replace(/\s+/g, " ");

const duckdb = SQLDialect.define({
  keywords: listed(words),
  types: listed(types),
  operatorChars: "*+-%<>!=&|/~^@",
  charSetCasts: false,
  doubleDollarQuotedStrings: true,
  unquotedBitLiterals: true,
});

const colours = HighlightStyle.define([
  { tag: tags.keyword, color: "var(--accent)" },
  { tag: [tags.typeName, tags.standard(tags.name)], color: "var(--quarantined)" },
  { tag: tags.string, color: "var(--fresh)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--stale)" },
  { tag: tags.comment, color: "var(--faint)" },
]);

const look = EditorView.theme({
  "&": {
    fontSize: "13px",
    color: "var(--text)",
    backgroundColor: "var(--surface)",
    minHeight: "148px",
    maxHeight: "46vh",
  },
  "&.cm-focused": { outline: "none" },
  "&.cm-focused::after": {
    content: "''",
    position: "absolute",
    inset: "0",
    zIndex: "300",
    border: "2px solid var(--accent)",
    borderRadius: "8px 8px 0 0",
    pointerEvents: "none",
  },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.55", overflow: "auto", minHeight: "148px" },
  ".cm-content": { caretColor: "var(--text)", padding: "10px 0", minHeight: "148px" },
  ".cm-gutters": { backgroundColor: "transparent", color: "var(--faint)", border: "0" },
  ".cm-lineNumbers .cm-gutterElement": { padding: "0 10px 0 12px" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": {
    backgroundColor: "var(--accent-soft)",
  },
  ".cm-matchingBracket, &.cm-focused .cm-matchingBracket": { backgroundColor: "var(--accent-soft)" },
  ".servo-error": {
    textDecoration: "underline wavy var(--failed)",
    textUnderlineOffset: "3px",
    backgroundColor: "var(--failed-soft)",
  },
  ".cm-tooltip": {
    backgroundColor: "var(--raised)",
    border: "1px solid var(--border)",
    borderRadius: "7px",
    boxShadow: "var(--shadow)",
    overflow: "hidden",
  },
  ".cm-tooltip.cm-tooltip-autocomplete > ul": {
    fontFamily: "var(--mono)",
    maxHeight: "15em",
    maxWidth: "min(560px, 92vw)",
  },
  ".cm-tooltip.cm-tooltip-autocomplete > ul > li": { padding: "3px 10px" },
  ".cm-tooltip-autocomplete > ul > li[aria-selected]": { backgroundColor: "var(--accent-soft)", color: "var(--text)" },
  ".cm-completionDetail": { color: "var(--muted)", fontStyle: "normal" },
  ".cm-completionIcon": { display: "none" },
});

// The place of an error: a range of the text, or nothing.
const setError = StateEffect.define<{ from: number; to: number } | undefined>();
const errorField = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update(marks, transaction) {
    let next = transaction.docChanged ? Decoration.none : marks;
    for (const effect of transaction.effects) {
      if (!effect.is(setError)) continue;
      next =
        effect.value && effect.value.to > effect.value.from
          ? Decoration.set(Decoration.mark({ class: "servo-error" }).range(effect.value.from, effect.value.to))
          : Decoration.none;
    }
    return next;
  },
  provide: (field) => EditorView.decorations.from(field),
});

// The completions in addition to the words of SQL: columns of the tables that the statement names, and functions.
const language = (tables: Table[], functions: readonly Completion[]) => [
  sql({ dialect: duckdb, schema: namespaceOf(tables), upperCaseKeywords: true }),
  duckdb.language.data.of({
    autocomplete: (context: CompletionContext): CompletionResult | null => {
      const word = context.matchBefore(/[\w.]+$/);
      if (!word || word.text.includes(".")) return null;
      const columns = columnsIn(context.state.doc.toString(), tables).map((c) => ({
        label: quoted(c.name),
        detail: c.type,
        type: "property",
        boost: 50,
      }));
      const begun = functions.filter((f) => f.label.startsWith(word.text.toLowerCase()));
      return {
        from: word.from,
        options: word.text.length < 2 ? columns : [...columns, ...begun],
        validFor: /^\w+$/,
      };
    },
  }),
];

// If a person types over selected text, the browser by default uses inline styles, which the content security policy
// blocks. So this handler replaces the text itself.
const typeOverSelection = EditorView.domEventHandlers({
  beforeinput(event, view) {
    const { main } = view.state.selection;
    const text = event.data;
    if (event.inputType !== "insertText" || !text || main.empty || view.composing) return false;
    event.preventDefault();
    const insert = () =>
      view.state.update(view.state.replaceSelection(text), { userEvent: "input.type", scrollIntoView: true });
    const handled = view.state
      .facet(EditorView.inputHandler)
      .some((handler) => handler(view, main.from, main.to, text, insert));
    if (!handled) view.dispatch(insert());
    return true;
  },
});

export interface Editor {
  insert: (text: string) => void;
  show: (offset: number) => void;
}

export default function SqlEditor({
  value,
  onChange,
  tables,
  functions,
  error,
  handle,
}: {
  value: string;
  onChange: (value: string) => void;
  tables: Table[];
  functions: readonly Completion[];
  error: { offset: number; length: number } | undefined;
  handle: (editor: Editor) => void;
}) {
  const host = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView>(undefined);
  const changed = useRef(onChange);
  changed.current = onChange;
  const completion = useRef(new Compartment());

  // biome-ignore lint/correctness/useExhaustiveDependencies: the editor is created once, and later effects update it
  useEffect(() => {
    const element = host.current;
    if (!element) return;
    // In a shadow root, CodeMirror uses constructed style sheets. The content security policy blocks the style element
    // that it would insert into the document.
    const root = element.shadowRoot ?? element.attachShadow({ mode: "open" });
    const parent = document.createElement("div");
    root.replaceChildren(parent);
    const editor = new EditorView({
      root,
      parent,
      state: EditorState.create({
        doc: value,
        extensions: [
          lineNumbers(),
          history(),
          drawSelection(),
          bracketMatching(),
          closeBrackets(),
          autocompletion({ icons: false }),
          syntaxHighlighting(colours),
          completion.current.of(language(tables, functions)),
          errorField,
          typeOverSelection,
          look,
          EditorView.lineWrapping,
          EditorView.contentAttributes.of({
            "aria-label": "SQL",
            spellcheck: "false",
            autocapitalize: "off",
          }),
          EditorView.updateListener.of((update) => {
            if (update.docChanged) changed.current(update.state.doc.toString());
          }),
          // The page executes Ctrl+Enter: the editor must not insert a line.
          Prec.highest(keymap.of([{ key: "Mod-Enter", run: () => true }])),
          keymap.of([
            // While completions are shown, Tab must not leave the editor.
            { key: "Tab", run: (view) => acceptCompletion(view) || completionStatus(view.state) === "active" },
            ...closeBracketsKeymap,
            ...defaultKeymap,
            ...historyKeymap,
            ...completionKeymap,
          ]),
        ],
      }),
    });
    view.current = editor;
    handle({
      insert: (text) => {
        editor.dispatch(editor.state.replaceSelection(text));
        editor.focus();
      },
      show: (offset) => {
        editor.dispatch({ selection: { anchor: Math.min(offset, editor.state.doc.length) }, scrollIntoView: true });
        editor.focus();
      },
    });
    editor.focus();
    return () => editor.destroy();
  }, []);

  useEffect(() => {
    const editor = view.current;
    if (!editor || editor.state.doc.toString() === value) return;
    editor.dispatch({
      changes: { from: 0, to: editor.state.doc.length, insert: value },
      selection: { anchor: value.length },
    });
  }, [value]);

  useEffect(() => {
    view.current?.dispatch({ effects: completion.current.reconfigure(language(tables, functions)) });
  }, [tables, functions]);

  useEffect(() => {
    const editor = view.current;
    if (!editor) return;
    const end = editor.state.doc.length;
    const range = error && {
      from: Math.min(error.offset, end),
      to: Math.min(error.offset + Math.max(error.length, 1), end),
    };
    editor.dispatch({ effects: setError.of(range) });
  }, [error]);

  return <div ref={host} data-sql />;
}
