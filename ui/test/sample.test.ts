import { expect, test } from "vitest";
import { sampleOf, statementOf } from "../src/api/sample";

test("a sample reads one partition, whatever its values are", () => {
  expect(statementOf("raw/orders", "", ["id"], 50)).toBe("SELECT *\nFROM raw.orders\nLIMIT 50");
  expect(statementOf("raw/events", '{"hour":"2025-03-29T04:00+01:00"}', ["hour"], 5)).toContain(
    "WHERE hour = '2025-03-29T04:00:00+01:00'",
  );
  expect(statementOf("a/b", `{"name":"it's"}`, ["name"], 5)).toContain("WHERE name = 'it''s'");
  expect(statementOf("a/b", '{"date":"2025-01-01"}', ["x"], 5)).not.toContain("WHERE");
  expect(statementOf("a/b", '{"month":"2025-03"}', ["month"], 5, ["month"])).toContain("WHERE month = '2025-03-01'");
  expect(statementOf("a/b", '{"year":"2025"}', ["year"], 5, ["year"])).toContain("WHERE year = '2025-01-01'");
  expect(statementOf("a/b", '{"day":"2025-03-02"}', ["day"], 5, ["day"])).toContain("WHERE day = '2025-03-02'");
  expect(statementOf("a/b", '{"model":"2025"}', ["model"], 5)).toContain("WHERE model = '2025'");
  expect(statementOf("table/order", "", ["x"], 5)).toContain('FROM "table"."order"');
  expect(sampleOf("a/b", '{"p":"x"}')).toContain(`partition_key = '{"p":"x"}'`);
});
